"""A run's folder: complete, safe to read at any time, written by one process at once."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import save
from torch import nn

from ..core.errors import ChangedWarning, InputError
from ..engine.run import Run
from ..engine.simulation import Simulation
from ..files import TEMPORARY, create_folder, flush_folder, locked, read_json, said_of, sweep, write_atomically
from ..metrics.flatness import Finding, Flatness
from ..metrics.protocols import AccuracyCurve
from ..rounds.checkpoint import kept_in, path_of, retire
from ..rounds.history import metrics_table
from .checksums import Checksums
from .environment import environment
from .results import read_counts, read_findings, read_metrics, read_summary
from .spec import RunSpec

METRICS = "metrics.parquet"


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run: config.toml, env.json, metrics.parquet, partition.parquet, checkpoint/, of texts
    vocabulary.txt, and, once the run is finished, model.safetensors and summary.json; SHA256SUMS of all but
    checkpoint/, whose files have their own.

    What the rounds have made is in checkpoint/, and everything else can be made from that again."""

    path: Path

    @property
    def is_finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @property
    def has_begun(self) -> bool:
        return (self.path / "config.toml").exists()

    @property
    def state(self) -> Path:
        """The folder of what the next round depends on: the last checkpoints and, where clients keep much, the file
        of their records, which serves those checkpoints alone."""
        return self.path / "checkpoint"

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints that are kept, oldest first."""
        return kept_in(self.state)

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def sums(self) -> Checksums:
        """What the files should be."""
        return Checksums(self.path)

    def spec(self) -> RunSpec:
        """The configuration that the run was started with."""
        return RunSpec.load(self.sums.check("config.toml"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The folder made and locked. Raises ValueError if it cannot be written or another process writes it.

        The lock belongs to the process: the system frees it however the process ends.
        """
        if (self.path / "study.toml").exists():
            raise InputError(f"--out {self.path} holds a study; choose another folder for a run")
        try:
            for folder in (self.path, self.state):
                create_folder(folder)
            self.state.chmod(0o700)  # clients' records tell of their gradients
        except OSError as error:
            raise InputError(f"--out {self.path} cannot be written: {error.strerror}") from error
        with locked(self.path / ".lock", f"--out {self.path} is being written by another run"):
            for folder in (self.path, self.state):
                sweep(folder)
            yield

    def clear(self) -> None:
        """Remove what killed processes have left half written; a folder that cannot be written stays as it is."""
        left = [path for folder in (self.path, self.state) for path in folder.glob(".tmp-*")]
        if any(TEMPORARY.fullmatch(path.name) for path in left):
            with suppress(InputError), self.writing():
                pass

    def begin(self, spec: RunSpec, sim: Simulation) -> None:
        """Write what is known before round 0. Raises ValueError if the folder holds a run with other settings."""
        if self.has_begun:
            self.refuse_other(spec)
        if not (self.path / "partition.parquet").exists():
            self._write_table("partition.parquet", _counts_table(sim.data.counts()))
        if sim.data.vocabulary and not (self.path / "vocabulary.txt").exists():
            self._write_text("vocabulary.txt", "\n".join(sim.data.vocabulary))
        if not self.has_begun:
            self._write_text("config.toml", spec.to_toml())

    def damaged(self) -> list[str]:
        """The files that are not what was written; without its summary a run is not damaged but not finished."""
        names = [name for name in self.sums.names if self.is_finished or name != "summary.json"]
        return [name for name in names if self.sums.problem(name)]

    def give_up(self, damaged: Sequence[str]) -> None:
        """Remove files that are damaged, to be made again from the last checkpoint; the run is then not finished.

        Raises InputError for config.toml, which only who began the run has.
        """
        if "config.toml" in damaged:
            self.sums.check("config.toml")
        if damaged:
            warnings.warn(
                f"{self.path}: {', '.join(damaged)} is damaged, and is made again", ChangedWarning, stacklevel=2
            )
            with said_of(self.path, "written"):
                for name in ("summary.json", *damaged):
                    (self.path / name).unlink(missing_ok=True)
                flush_folder(self.path)
            for name in damaged:
                self.sums.forget(name)

    def add_segment(self, sim: Simulation) -> None:
        """Add to env.json what the rounds from now on are carried out with and on."""
        path = self.path / "env.json"
        try:
            known = read_json(path) if path.exists() else []
        except InputError:
            known = []  # it only tells, and must not keep a run from going on
        segments = known if isinstance(known, list) else [known]  # one, in folders of an earlier version
        self._write_text("env.json", json.dumps([*segments, {"from round": sim.t, **environment(sim)}], indent=2))

    def refuse_other(self, spec: RunSpec) -> None:
        """Raise ValueError, naming the first difference, if the folder's run is not `spec`."""
        found = difference(self.spec().decisive(), spec.decisive())
        if found:
            raise InputError(f"--out {self.path} holds another run: {found}")

    def save(self, sim: Simulation) -> None:
        """Write a checkpoint and the metrics so far; checkpoints beyond the last ones go once the new one is safe."""
        sim.save(path_of(self.state, sim.t))
        self.sums.forget(METRICS)  # until the last row
        write_atomically(self.path / METRICS, lambda path: pq.write_table(metrics_table(sim.history), path))
        retire(self.state, sim.t)

    def finish(self, run: Run, targets: Sequence[float] = ()) -> None:
        """Write what the run leaves; the summary comes last and marks it finished."""
        retire(self.state, run.metrics.num_rows)
        self._write_table(METRICS, run.metrics)
        self.sums.write("model.safetensors", lambda path: save_model(path, run.model))
        self.add_findings(run.flatness.findings)
        summary = {"summary": run.summary, "targets": [_reached(run, target) for target in targets]}
        summary |= {"settings": run.settings, "cost": vars(run.cost)}
        self._write_text("summary.json", json.dumps(summary, indent=2))

    def add_findings(self, findings: Sequence[Finding]) -> None:
        """Keep what was measured, in flatness.json; what was found before under the same names is replaced."""
        if not findings:
            return
        new = {name for finding in findings for name in (*finding.values, *finding.curves)}
        kept = [old for old in self.findings() if not new & {*old.values, *old.curves}]
        content = [finding.to_dict() for finding in (*kept, *findings)]
        self._write_text("flatness.json", json.dumps(content, indent=2))

    def findings(self) -> list[Finding]:
        """What has been measured on the run's model."""
        if not (self.path / "flatness.json").exists():
            return []
        return read_findings(self.sums.check("flatness.json"))

    def _write_text(self, name: str, text: str) -> None:
        self.sums.write(name, lambda path: path.write_text(text + "\n"))

    def _write_table(self, name: str, table: pa.Table) -> None:
        self.sums.write(name, lambda path: pq.write_table(table, path))


def save_model(path: Path, model: nn.Module) -> None:
    """Write a model's parameters by name, as safetensors; equal models make equal files."""
    path.write_bytes(save({name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}))


@dataclass(frozen=True)
class StoredRun:
    """A finished run read back from its folder, with the same names as `fedflat.Run`."""

    directory: RunDirectory

    @classmethod
    def open(cls, path: Path) -> StoredRun:
        """Raises ValueError if `path` holds no finished run."""
        directory = RunDirectory(path)
        if not directory.is_finished:
            raise InputError(f"{path} holds no finished run" + (
                "; continue it with `fedflat resume`" if directory.has_begun else ""))  # fmt: skip
        return cls(directory)

    @cached_property
    def _report(self) -> dict[str, Any]:
        path = self.directory.sums.check("summary.json")
        content, spec = read_summary(path), self.directory.spec()
        there = content["settings"]["method"].partition("(")[0], content["settings"]["seed"]
        if there != (spec.method.name, spec.seed):
            raise InputError(f"{path} is of {there[0]}, seed {there[1]}, and config.toml beside it of {spec.label}")
        return content

    @property
    def method(self) -> str:
        return str(self.directory.spec().method.name)

    @property
    def seed(self) -> int:
        return self.directory.spec().seed

    @property
    def summary(self) -> dict[str, float]:
        summary: dict[str, float] = self._report["summary"]
        return summary

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self._report["settings"]
        return settings

    @cached_property
    def flatness(self) -> Flatness:
        """What was measured on the final model."""
        return Flatness(tuple(self.directory.findings()))

    @cached_property
    def metrics(self) -> pa.Table:
        return read_metrics(self.directory.sums.check(METRICS))

    @cached_property
    def counts(self) -> np.ndarray:
        """Samples per client and class, (clients, classes)."""
        return read_counts(self.directory.sums.check("partition.parquet"))


def _reached(run: Run, target: float) -> dict[str, Any]:
    """When a target was reached, with and without smoothing, and what it cost; nulls where it was not."""
    curve = AccuracyCurve.of(run.metrics.to_pylist(), run.summary["vector_bytes"])
    found = {"plain": curve.reached(target), "smoothed": curve.reached(target, smooth=True)}
    return {"accuracy": target} | {name: reached and vars(reached) for name, reached in found.items()}


def _counts_table(counts: np.ndarray) -> pa.Table:
    return pa.table({f"class_{c}": column for c, column in enumerate(counts.T)})


def difference(old: Any, new: Any, key: str = "") -> str | None:
    """The first key on which two configurations differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            found = difference(old.get(name), new.get(name), f"{key}.{name}" if key else name)
            if found:
                return found
        return None
    return None if old == new else f"{key} is {old} there and {new} here"
