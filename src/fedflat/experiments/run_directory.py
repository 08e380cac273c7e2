"""The folder of a run: complete, safe to read at any time, and written by one process at a time."""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save
from torch import nn

from ..core.errors import ChangedWarning, InputError
from ..data.federated import Index
from ..engine.run import Run
from ..engine.simulation import Simulation
from ..files import TEMPORARY, create_folder, flush_folder, locked, read_json, sweep, system_errors, write_atomically
from ..metrics.flatness import Finding, Flatness
from ..metrics.protocols import AccuracyCurve
from ..rounds.checkpoint import kept_in, path_of, retire
from ..rounds.device import device_name
from ..rounds.history import metrics_table
from ..rounds.segments import versions
from .checksums import Checksums
from .commit import commit_of_code
from .run_file_readers import read_counts, read_findings, read_metrics, read_summary
from .spec import RunSpec

METRICS = "metrics.parquet"
RECORDED = ("fedflat", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "pyarrow")  # packages in env.json


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run.

    From the first round it has config.toml, env.json, metrics.parquet, partition.parquet, for texts vocabulary.txt, and
    checkpoint/; a finished run also has model.safetensors, summary.json and perhaps flatness.json. SHA256SUMS has the
    digests of all these files except those in checkpoint/, which contain their own. From a checkpoint and config.toml
    all other files can be made again.
    """

    path: Path

    @property
    def is_finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @property
    def has_begun(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def state(self) -> Path:
        """The folder with the last checkpoints and, where clients keep much, the file of records they refer to."""
        return self.path / "checkpoint"

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints in the folder, oldest first."""
        return kept_in(self.state)

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def checksums(self) -> Checksums:
        """The digests of the files."""
        return Checksums(self.path)

    def spec(self) -> RunSpec:
        """The configuration that the run was started with."""
        return RunSpec.load(self.checksums.check("config.toml"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make the folder and hold its lock. Raises InputError if it cannot be written or another process writes it.

        The lock belongs to the process: the system frees it however the process ends.
        """
        if (self.path / "study.toml").exists():
            raise InputError(f"--out {self.path} holds a study; choose another folder for a run")
        try:
            for folder in (self.path, self.state):
                create_folder(folder)
            self.state.chmod(0o700)  # clients' records reveal their gradients
        except OSError as error:
            raise InputError(f"--out {self.path} cannot be written: {error.strerror}") from error
        with locked(self.path / ".lock", f"--out {self.path} is being written by another run"):
            for folder in (self.path, self.state):
                sweep(folder)
            yield

    def remove_temporary_files(self) -> None:
        """Remove the incomplete files that killed processes have left; a folder that is read-only is left unchanged."""
        left = [path for folder in (self.path, self.state) for path in folder.glob(".tmp-*")]
        if any(TEMPORARY.fullmatch(path.name) for path in left):
            with suppress(InputError), self.writing():
                pass

    def begin(self, spec: RunSpec, sim: Simulation) -> None:
        """Write the files that are known before round 0. Raises InputError if the folder holds another run."""
        if self.has_begun:
            self.check_same_run(spec)
        if not (self.path / "partition.parquet").exists():
            counts = {f"class_{c}": column for c, column in enumerate(sim.data.counts().T)}
            self.checksums.write("partition.parquet", partial(pq.write_table, pa.table(counts)))
        if sim.data.vocabulary and not (self.path / "vocabulary.txt").exists():
            self._write_text("vocabulary.txt", "\n".join(sim.data.vocabulary))
        if not self.has_begun:
            self._write_text("config.toml", spec.to_toml())

    def damaged_files(self) -> list[str]:
        """The files that are not as they were written. A missing summary only means that the run is not finished."""
        names = [name for name in self.checksums.names if self.is_finished or name != "summary.json"]
        return [name for name in names if self.checksums.problem(name)]

    def remove_damaged(self, damaged: Sequence[str]) -> None:
        """Remove damaged files and the summary, so that the run goes on and makes them again from its checkpoint.

        Raises InputError if config.toml is damaged, because nothing in the folder can make it again.
        """
        if "config.toml" in damaged:
            self.checksums.check("config.toml")
        if damaged:
            warnings.warn(
                f"{self.path}: {', '.join(damaged)} is damaged, and is made again", ChangedWarning, stacklevel=2
            )
            with system_errors(self.path, "written"):
                for name in ("summary.json", *damaged):
                    (self.path / name).unlink(missing_ok=True)
                flush_folder(self.path)
            for name in damaged:
                self.checksums.remove(name)

    def add_segment(self, sim: Simulation) -> None:
        """Add to env.json the versions and the machine with which the rounds from now on are computed."""
        path = self.path / "env.json"
        try:
            known = read_json(path) if path.exists() else []
        except InputError:
            known = []  # the file only informs, so its damage must not stop a run
        segments = known if isinstance(known, list) else [known]  # earlier versions wrote a single one
        self._write_text("env.json", json.dumps([*segments, {"from round": sim.t, **environment(sim)}], indent=2))

    def check_same_run(self, spec: RunSpec) -> None:
        """Raise InputError, naming the first difference, unless the folder's run has the settings `spec`."""
        found = difference(self.spec().decisive(), spec.decisive())
        if found:
            raise InputError(f"--out {self.path} holds another run: {found}")

    def save(self, sim: Simulation) -> None:
        """Write a checkpoint and the metrics so far, then remove checkpoints that are older than the last three."""
        sim.save(path_of(self.state, sim.t))
        self.checksums.remove(METRICS)  # it gets a digest when it is complete
        write_atomically(self.path / METRICS, lambda path: pq.write_table(metrics_table(sim.history), path))
        retire(self.state, sim.t)

    def finish(self, run: Run, targets: Sequence[float] = ()) -> None:
        """Write the results of the run; the summary is written last and marks it as finished.

        For each target accuracy it has the round, and the cost, at which the accuracy was reached, plain and smoothed.
        """
        retire(self.state, run.metrics.num_rows)
        self.checksums.write(METRICS, partial(pq.write_table, run.metrics))
        self.checksums.write("model.safetensors", lambda path: save_model(path, run.model))
        self.add_findings(run.flatness.findings)
        reports = []
        for target in targets:
            curve = AccuracyCurve.of(run.metrics.to_pylist(), run.summary["vector_bytes"])
            found = {"plain": curve.reached(target), "smoothed": curve.reached(target, smooth=True)}
            reports.append({"accuracy": target} | {name: reached and vars(reached) for name, reached in found.items()})
        summary = {"summary": run.summary, "targets": reports, "settings": run.settings, "cost": vars(run.cost)}
        self._write_text("summary.json", json.dumps(summary, indent=2))

    def add_findings(self, findings: Sequence[Finding]) -> None:
        """Add findings to flatness.json, where they replace those with the same names."""
        if not findings:
            return
        new = {name for finding in findings for name in (*finding.values, *finding.curves)}
        kept = [old for old in self.findings() if not new & {*old.values, *old.curves}]
        content = [asdict(finding) for finding in (*kept, *findings)]
        self._write_text("flatness.json", json.dumps(content, indent=2))

    def findings(self) -> list[Finding]:
        """The findings of all measures of the run's model so far."""
        if not (self.path / "flatness.json").exists():
            return []
        return read_findings(self.checksums.check("flatness.json"))

    def _write_text(self, name: str, text: str) -> None:
        self.checksums.write(name, lambda path: path.write_text(text + "\n"))


def environment(sim: Simulation) -> dict[str, Any]:
    """Versions, machine, device and all settings that the rounds depend on, as values for a JSON file."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(RECORDED) | {"python": platform.python_version()},
        "commit": commit_of_code(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "workers": sim.workers,
        "device": device_name(sim.device),
        "executor": {"name": sim.choice.name, "reason": sim.choice.reason, "seconds per step": sim.choice.seconds},
        "settings": sim.settings(),
    }


def save_model(path: Path, model: nn.Module) -> None:
    """Write a model's parameters by name, as safetensors; equal models make equal files."""
    path.write_bytes(save({name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}))


@dataclass(frozen=True)
class StoredRun:
    """A finished run read back from its folder, with the same names as `fedflat.Run`."""

    directory: RunDirectory

    @classmethod
    def open(cls, path: Path) -> StoredRun:
        """The finished run in the folder `path`. Raises InputError if there is none."""
        directory = RunDirectory(path)
        if not directory.is_finished:
            raise InputError(f"{path} holds no finished run" + (
                "; continue it with `fedflat resume`" if directory.has_begun else ""))  # fmt: skip
        return cls(directory)

    @cached_property
    def _summary_and_settings(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Both parts of summary.json. Raises InputError if it belongs to another run than config.toml."""
        path = self.directory.checksums.check("summary.json")
        (summary, settings), spec = read_summary(path), self.directory.spec()
        method, seed = settings["method"].partition("(")[0], settings["seed"]
        if (method, seed) != (spec.method.name, spec.seed):
            raise InputError(f"{path} is of {method}, seed {seed}, and config.toml beside it of {spec.label}")
        return summary, settings

    @property
    def method(self) -> str:
        return self.directory.spec().method.name

    @property
    def seed(self) -> int:
        return self.directory.spec().seed

    @property
    def summary(self) -> dict[str, float]:
        return self._summary_and_settings[0]

    @property
    def settings(self) -> dict[str, Any]:
        return self._summary_and_settings[1]

    @cached_property
    def flatness(self) -> Flatness:
        """The findings of measures of the final model."""
        return Flatness(tuple(self.directory.findings()))

    @cached_property
    def metrics(self) -> pa.Table:
        return read_metrics(self.directory.checksums.check(METRICS))

    @cached_property
    def counts(self) -> Index:
        """Samples per client and class, (clients, classes)."""
        return read_counts(self.directory.checksums.check("partition.parquet"))


def difference(old: Any, new: Any, key: str = "") -> str | None:
    """A text that names the first key in which two configurations differ, and both values; None if they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            found = difference(old.get(name), new.get(name), f"{key}.{name}" if key else name)
            if found:
                return found
        return None
    return None if old == new else f"{key} is {old} there and {new} here"
