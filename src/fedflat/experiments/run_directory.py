"""The folder of a run, with all its files: it can be read at any time, and is written by one process at a time."""

from __future__ import annotations

import json
import os
import platform
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from ..core.errors import ChangedWarning, InputError, printable
from ..core.object_references import is_code_allowed
from ..data.conversion import tokenizer_of
from ..data.readers.layouts import Shape
from ..data.sample_kind import Encoder, SampleKind
from ..data.schema import Schema
from ..data.sources import source, source_names
from ..data.types import Index
from ..engine.evaluation import predict
from ..engine.run import (
    METRICS,
    MODEL,
    VOCABULARY,
    Run,
    metrics_frame,
    short_description,
    write_counts,
    write_findings,
    write_json,
    write_metrics_and_model,
    write_summary,
    write_text,
)
from ..engine.simulation import Simulation
from ..engine.slot_file import replace_by_copy
from ..files import (
    TEMPORARY,
    create_folder,
    flush_folder,
    read_json,
    read_text,
    sweep,
    system_errors,
    write_atomically,
)
from ..metrics.by_client import ClientScores
from ..metrics.flatness import Finding, Flatness
from ..models.blocks.fetched import fetched_commit, folder_of
from ..rounds.checkpoint import KEPT, kept_in, path_of, retire
from ..rounds.checkpoint import load as load_state
from ..rounds.checksums import Checksums
from ..rounds.device import device_name, usable_device
from ..rounds.run_model import InitialModel, frozen_hash, load_model
from ..rounds.segments import commit_of_code, versions
from ..rounds.server import metrics_table
from ..rounds.settings import first_difference
from .claims import LEASE, ClaimObserver, HeldClaim, Observation, claimed
from .jobs import VISIBLE
from .run_file_readers import Summary, read_counts, read_findings, read_metrics, read_summary
from .spec import Experiment, RunSpec

Format = Literal["safetensors", "onnx"]  # of an exported model
TABLES = ("csv", "jsonl")  # names of the data sets whose rows may be features
RECORDED = ("fedflat", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "pyarrow")  # packages in env.json
WORD = re.compile(r"[\w.+-]{1,64}", re.ASCII)  # a version, or a commit
FAILURE = "failure.json"
OF_TRAINING = "a picture of training"  # in messages on pictures whose shape is not that of the training pictures


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run.

    From the first round on, it has config.toml, env.json, metrics.parquet, partition.parquet, checkpoint/ and, for
    texts, vocabulary.txt. The folder of a finished run also has model.safetensors, summary.json and perhaps
    flatness.json. SHA256SUMS has the digests of all these files except those in checkpoint/, which contain their own
    digests. A checkpoint and config.toml are enough to restore all other files.
    """

    path: Path

    @property
    def is_finished(self) -> bool:
        return (self.path / "summary.json").exists()

    @property
    def has_begun(self) -> bool:
        return os.path.lexists(self.path / "config.toml")  # a broken link counts as a damaged file

    @property
    def state(self) -> Path:
        """The folder with the newest checkpoints and, if client records are large, a file of the clients' records."""
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
        """The digests of the run's files."""
        return Checksums(self.path)

    def spec(self) -> RunSpec:
        """Read the configuration that the run was started with.

        Raises InputError for a run that was saved from Python, whose simulation cannot be built again, and for a folder
        without a run.
        """
        if self.has_begun:
            return RunSpec.load(self.checksums.check("config.toml"))
        if self.is_finished:
            raise InputError(
                f"{self.path} was saved from Python and keeps neither data nor configuration; in Python use "
                "fedflat.flatness(fedflat.load_run(folder).model, data), or continue with the simulation itself"
            )
        raise InputError(f"{self.path} holds neither a run (config.toml) nor a study (study.toml)")

    @contextmanager
    def writing(self, observed: Observation | None = None, lease: float = LEASE) -> Iterator[HeldClaim]:
        """Make the folder and hold the claim on it inside the block, see `claims`.

        observed: what is known about the claim on the folder; by default, this method looks at it. lease: seconds of
        silence after which another process may take the folder over. Raises InputError if the folder cannot be written,
        and BusyError if another process writes it.
        """
        if (self.path / "study.toml").exists():
            raise InputError(f"--out {self.path} holds a study; choose another folder for a run")
        try:
            for folder in (self.path, self.state):
                create_folder(folder)
            self.state.chmod(0o700)  # clients' records reveal their gradients
        except OSError as error:
            raise InputError(f"--out {self.path} cannot be written: {error.strerror}") from error
        observed = observed or ClaimObserver().look(self.path)
        with claimed(self.path, observed, lease) as held:
            for folder in (self.path, self.state):
                sweep(folder)
            if observed.content is not None:  # its process may still live, and write clients' records in place
                replace_by_copy(self.state)
            yield held

    @property
    def failure(self) -> str | None:
        """The error with which the last attempt to carry out the run ended; None if there was none."""
        if not (self.path / FAILURE).exists():
            return None
        content = read_json(self.path / FAILURE)
        return printable(str(content.get("error"))) if isinstance(content, dict) else "unknown"

    def record_failure(self, error: Exception) -> None:
        """Write the error with which the run ended. Raises InputError if it cannot be written."""
        text = json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}) + "\n"
        write_atomically(self.path / FAILURE, lambda path: path.write_bytes(text.encode()))

    def forget_failure(self) -> None:
        """Remove what `record_failure` wrote."""
        with system_errors(self.path, "written"):
            (self.path / FAILURE).unlink(missing_ok=True)

    def remove_temporary_files(self) -> None:
        """Remove incomplete files left by killed processes; a read-only folder stays unchanged."""
        left = [path for folder in (self.path, self.state) for path in folder.glob(".tmp-*")]
        if any(TEMPORARY.fullmatch(path.name) for path in left):
            with suppress(InputError), self.writing():
                pass

    def begin(self, spec: RunSpec, sim: Simulation) -> None:
        """Write the files that are known before round 0. Raises InputError if the folder holds another run."""
        if self.has_begun:
            self.check_same_run(spec)
        if not (self.path / "partition.parquet").exists():
            write_counts(self.checksums, sim.data.counts())
        if sim.data.vocabulary and not (self.path / VOCABULARY).exists():
            write_text(self.checksums, VOCABULARY, "\n".join(sim.data.vocabulary))
        if not self.has_begun:
            write_text(self.checksums, "config.toml", spec.to_toml())

    def damaged_files(self) -> list[str]:
        """Return the names of damaged files. A missing summary is no damage: it means that the run is not finished."""
        names = [name for name in self.checksums.names if self.is_finished or name != "summary.json"]
        return [name for name in names if self.checksums.problem(name)]

    def remove_damaged(self, damaged: Sequence[str]) -> None:
        """Remove damaged files and the summary, so that the run restores them from its checkpoint.

        Raises InputError if config.toml is damaged, because it cannot be restored from other files.
        """
        if "config.toml" in damaged:
            self.checksums.check("config.toml")
        if damaged:
            warnings.warn(
                f"{self.path}: {', '.join(damaged)} is damaged, and is restored", ChangedWarning, stacklevel=2
            )
            with system_errors(self.path, "written"):
                for name in ("summary.json", *damaged):
                    (self.path / name).unlink(missing_ok=True)
                flush_folder(self.path)
            for name in ("summary.json", *damaged):  # no longer damaged, but missing
                self.checksums.remove(name)

    def add_segment(self, sim: Simulation, spec: RunSpec) -> None:
        """Add an entry for the next rounds to env.json: versions, machine, device, all settings and the user's code."""
        new: dict[str, Any] = {
            "from round": sim.t,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(RECORDED) | {"python": platform.python_version()},
            "commit": commit_of_code(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "workers": sim.workers,
            "device": device_name(sim.device),
            "visible gpus": os.environ.get(VISIBLE),
            "executor": {"name": sim.choice.name, "reason": sim.choice.reason, "seconds per step": sim.choice.seconds},
            "settings": sim.settings(),
        }
        if spec.outside_names():
            new["code"] = spec.code()

        fetched = {name: commit for name in spec.model.options.values() if (commit := fetched_commit(name))}
        if fetched:
            new["fetched from the hub"] = fetched
        write_json(self.checksums, "env.json", [*self._segments(), new])

    def commits(self) -> list[str | None]:
        """Return the commit of the code of each segment, None where it is unknown; empty if env.json is damaged."""
        return [one.get("commit") if isinstance(one, dict) else None for one in self._segments()]

    def origins(self) -> list[tuple[str, str | None]]:
        """Return the version of fedflat and the commit of each segment; texts of another form are left out."""
        found = []
        for one in (some for some in self._segments() if isinstance(some, dict)):
            known = one.get("versions")
            version, commit = (known.get("fedflat") if isinstance(known, dict) else None), one.get("commit")
            if isinstance(version, str) and WORD.fullmatch(version):
                found.append((version, commit if isinstance(commit, str) and WORD.fullmatch(commit) else None))
        return found

    def _segments(self) -> list[Any]:
        """Return the entries of env.json. The list is empty if the file is damaged, so that the run can continue."""
        path = self.path / "env.json"
        try:
            known = read_json(path) if path.exists() else []
        except InputError:
            known = []
        return known if isinstance(known, list) else []

    def check_same_code(self, spec: RunSpec, strict: bool) -> None:
        """Warn with a ChangedWarning if the user's code has changed since the saved rounds.

        With `strict`, raise InputError instead. Code files are read only if code may be run here.
        """
        last = self._segments()[-1:]
        before = last[0].get("code") if last and isinstance(last[0], dict) else None
        if not isinstance(before, dict) or not is_code_allowed():
            return
        known = {name: found.get("sha256") for name, found in before.items() if isinstance(found, dict)}
        now = {name: found["sha256"] for name, found in spec.code().items()}
        changed = {name.partition(":")[0] for name, sha256 in now.items() if known.get(name, sha256) != sha256}
        if changed:
            text = f"{self.path}: {', '.join(map(printable, sorted(changed)))} has changed since the rounds so far"
            if strict:
                raise InputError(f"{text}; without --strict the run continues")
            warnings.warn(f"{text}; for results of the new code choose another folder", ChangedWarning, stacklevel=3)

    def check_same_run(self, spec: RunSpec, any_rounds: bool = False) -> None:
        """Raise InputError, naming the first difference, unless the folder's run has the settings `spec`.

        any_rounds: whether the number of rounds may differ.
        """
        old, new = self.spec().decisive(), spec.decisive()
        new["rounds"] = old["rounds"] if any_rounds else new["rounds"]
        if found := difference(old, new):
            raise InputError(f"--out {self.path} holds another run: {found}; {remedy(self.path, old, new, spec)}")

    def reopen(self, spec: RunSpec) -> None:
        """Give the run the settings `spec`, with more rounds, and mark it as not finished; call this inside `writing`.

        If the process is killed meanwhile, the run keeps its old number of rounds, and its files are correct or
        missing. Digests are removed first, because a missing file with a digest counts as damaged. The summary, which
        marks a run as finished, is removed next.
        """
        results = ("summary.json", "flatness.json", "model.safetensors")
        for name in results:
            self.checksums.remove(name)
        for name in results:
            with system_errors(self.path, "written"):
                (self.path / name).unlink(missing_ok=True)
                flush_folder(self.path)
        write_text(self.checksums, "config.toml", spec.to_toml())

    def save(self, sim: Simulation) -> None:
        """Write a checkpoint and the metrics so far, then remove checkpoints that are older than the last three."""
        sim.save(path_of(self.state, sim.t))
        self.checksums.remove(METRICS)  # it gets a digest once it is complete
        write_atomically(self.path / METRICS, lambda path: pq.write_table(metrics_table(sim.history), path))
        retire(self.state, sim.t)

    def finish(self, run: Run, targets: Sequence[float] = ()) -> None:
        """Write the results of the run; the summary is written last and marks it as finished.

        The summary has the round and the cost at which the accuracy, plain and smoothed, reached each target.
        """
        # An older checkpoint of a private run reveals the key of the noise in the final model.
        retire(self.state, run.metrics.num_rows, 1 if "epsilon" in run.summary else KEPT)
        write_metrics_and_model(self.checksums, run)
        self.add_findings(run.flatness.findings)
        write_summary(self.checksums, run, targets)

    def add_findings(self, findings: Sequence[Finding]) -> None:
        """Add findings to flatness.json, in place of those with the same names."""
        if not findings:
            return
        new = {name for finding in findings for name in (*finding.values, *finding.curves)}
        kept = [old for old in self.findings() if not new & {*old.values, *old.curves}]
        write_findings(self.checksums, (*kept, *findings))

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics of all saved rounds.

        They are read from metrics.parquet if the run is finished, else from the newest undamaged checkpoint. Raises
        InputError if the metrics of a finished run are damaged.
        """
        if self.is_finished:
            rows: list[dict[str, Any]] = read_metrics(self.checksums.check(METRICS)).to_pylist()
            return rows
        for path in reversed(self.checkpoints):
            with suppress(InputError):
                history: list[dict[str, Any]] = load_state(path)[1]["history"]
                return history
        return []

    def findings(self) -> list[Finding]:
        """Return the findings of all measures of the run's model so far."""
        if not (self.path / "flatness.json").exists():
            return []
        return read_findings(self.checksums.check("flatness.json"))


@dataclass(frozen=True, repr=False)
class StoredRun:
    """A finished run read from its folder, with the same attributes as `fedflat.Run`."""

    directory: RunDirectory

    @classmethod
    def open(cls, path: Path) -> StoredRun:
        """Open the finished run in the folder `path`. Raises InputError if it holds no finished run."""
        directory = RunDirectory(path)
        if not directory.is_finished:
            raise InputError(f"{path} holds no finished run" + (
                "; continue it with `fedflat resume`" if directory.has_begun else ""))  # fmt: skip
        return cls(directory)

    @cached_property
    def _content(self) -> Summary:
        """The content of summary.json. Raises InputError if it belongs to another run than config.toml."""
        path = self.directory.checksums.check("summary.json")
        content, spec = read_summary(path), self._configuration
        method, seed = content.settings.label, content.settings.seed
        if spec and (method, seed) != (spec.method.label, spec.seed):
            raise InputError(f"{path} is of {method}, seed {seed}, and config.toml beside it of {spec.label}")
        return content

    @property
    def method(self) -> str:
        """The method's class name; for a wrapper, its name and that of the method inside, such as `SWA-FedSAM`."""
        return str(self.settings["label"])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @cached_property
    def spec(self) -> RunSpec:
        """The configuration. Raises InputError for a run that was saved from Python, which has none."""
        return self._configuration or self.directory.spec()

    @cached_property
    def _configuration(self) -> RunSpec | None:
        """The configuration; None for a run that was saved from Python."""
        return self.directory.spec() if self.directory.has_begun else None

    @property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode; every access builds a new module.

        Raises InputError for a run of the user's own module (use `load_into`), if a part of the model stayed with the
        clients, and if the frozen parameters are not those that the adapter was trained on.
        """
        self._check_whole()
        module = self.initial_model.module()
        known = None if self.settings["adapter"] is None else self.settings["base_hash"]
        if known is not None and (found := frozen_hash(module)) != known:
            raise InputError(
                f"{self.directory.path}: its adapter was trained on a model with the hash {known}, and the model that "
                f"config.toml names now has {found}; put the old files back"
            )
        return self.load_into(module)

    def _check_whole(self) -> None:
        """Raise InputError if the server has no whole model, because a part stayed with the clients."""
        if self.settings["keep"] or self.settings["buffers"] == "local":
            raise InputError(
                f"{self.directory.path}: a part of the model stayed with the clients (keep or buffers = 'local'); "
                "build the run's simulation, load its checkpoint and use client_model(i)"
            )

    @property
    def initial_model(self) -> InitialModel:
        """The description of the model before training. Raises InputError for a module of the user's own."""
        architecture = self._content.architecture
        if architecture is None:
            raise InputError(
                f"{self.directory.path} was saved from Python and holds only the parameters; make the module and call "
                "load_into(module)"
            )
        return InitialModel.of_architecture(architecture.model_dump())

    def predict(self, x: Any, classes: bool = False) -> Tensor:
        """Predict as `Run.predict` does, on a GPU if there is one and the run's `device` is not "cpu".

        Texts are encoded by the run's own vocabulary or tokenizer.
        """
        return predict(self._placed_model, self.samples, x, classes, self._encoder)

    @cached_property
    def samples(self) -> SampleKind:
        """The kind of samples that the model takes."""
        samples = self._with_schema(self._content.samples)
        if not (self.directory.path / VOCABULARY).exists():
            return samples
        text = read_text(self.directory.checksums.check(VOCABULARY))
        return replace(samples, vocabulary=tuple(text.removesuffix("\n").split("\n")))

    def _with_schema(self, samples: SampleKind) -> SampleKind:
        """Add the schema of config.toml for a run on tables of an older version, whose summary has none.

        Raises InputError if config.toml does not state it in full.
        """
        data = None if self._configuration is None else self._configuration.data
        if samples.schema or samples.numbers != "floats" or data is None or data.name not in TABLES:
            return samples
        schema = Schema.of(data)
        if not schema.is_complete:
            raise InputError(f"{self.directory.path}: a run on tables by a version that did not keep how rows are "
                             "scaled and encoded; train it again")  # fmt: skip
        return replace(samples, schema=schema)

    def picture_shape(self) -> Shape:
        """Return the shape of the training pictures, to which pictures are decoded for prediction.

        Pictures are converted to grey or colour only if the run was trained on a known data set; otherwise a picture
        with other channels is refused.
        """
        channels, size = self.samples.shape[:2]
        if not self._configuration:
            return Shape(channels, size, first=OF_TRAINING)
        data = self._configuration.data
        known: Shape | None = getattr(source(data.name), "picture", None) if data.name in source_names() else None
        resize = data.image_size is not None or bool(known and known.resize)
        return Shape(channels, size, resize, first="" if known else OF_TRAINING)

    @cached_property
    def _placed_model(self) -> nn.Module:
        on_cpu = self._configuration is not None and self._configuration.device == "cpu"
        return self.model.to(usable_device("cpu" if on_cpu else "auto"))

    @cached_property
    def _encoder(self) -> Encoder | None:
        """The run's tokenizer as an encoder of texts; None for a run without a tokenizer."""
        spec, samples = self._configuration, self.samples
        if spec is None or samples.numbers != "tokens" or samples.vocabulary:
            return None
        path = spec.model.options.get("path") if spec.model.name == "transformer" else None
        tokenizer = tokenizer_of(spec.data.tokenizer or (None if path is None else str(folder_of("path", str(path)))))
        return None if tokenizer is None else lambda texts: tokenizer.encode(texts, samples.shape[0])

    def push_to_hub(
        self, repository: str, license: str | None = None, private: bool = True, format: Format = "safetensors"
    ) -> str:
        """Upload the exported model and its card to OWNER/NAME on the Hugging Face hub; return the address.

        The repository is made if it is missing, private unless `private` is False. license: a short name of the hub,
        such as "mit"; without it none is stated. Raises InputError for a name of another form, if the extra `hub` is
        missing, if the hub refuses, and for a model that only this machine can load.
        """
        from .hub_upload import push  # here, because it needs this module

        return push(self, repository, license, private, format)

    def load_into(self, module: nn.Module) -> nn.Module:
        """Put the trained parameters into `module`, which is changed and returned, in evaluation mode.

        Raises InputError for a module with other parameters.
        """
        return load_model(self.directory.checksums.check(MODEL), module).eval()

    def to_pandas(self) -> Any:
        """Return `metrics` as a pandas DataFrame. Raises InputError if pandas is not installed."""
        return metrics_frame(self.metrics)

    def __repr__(self) -> str:
        """Show method, seed, rounds and accuracy."""
        return f"StoredRun({short_description(self.method, self.seed, self.summary)}, in {self.directory.path})"

    @property
    def summary(self) -> dict[str, float]:
        return self._content.summary

    @property
    def clients(self) -> ClientScores | None:
        """The final scores of each client; None unless clients have test samples of their own."""
        return self._content.clients

    @cached_property
    def settings(self) -> dict[str, Any]:
        return self._content.settings.model_dump()

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


def remedy(path: Path, old: dict[str, Any], new: dict[str, Any], spec: Experiment) -> str:
    """Return advice for the folder `path`, which holds the settings `old` and not the settings `new` of `spec`."""
    longer = not difference(old | {"rounds": 0}, new | {"rounds": 0}) and new["rounds"] > old["rounds"]
    if longer and not spec.planned_by_rounds():
        return f"`fedflat resume {path} --rounds {new['rounds']}` extends it"
    return "choose another folder with --out, or remove this one"


def difference(old: Any, new: Any) -> str | None:
    """Return a text that names the first key in which two configurations differ, and both values; None if equal."""
    found = first_difference(old, new)
    return None if found is None else f"{found[0]} is {found[1]} there and {found[2]} here"
