"""Takes measures of finished or stopped runs, and loads their models, local models and next cohorts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from ..core.errors import InputError, printable
from ..core.progress import Progress
from ..data.types import Index
from ..engine.simulation import Simulation
from ..files import read_bytes
from ..metrics.flatness import LIGHT, Finding, Flatness, Measure, check_measures, check_names
from ..metrics.flatness.subject import RoundObserver
from ..rounds.participation import Explicit
from ..rounds.randomness import Purpose, generator
from ..rounds.run_model import load_model
from .config_errors import validated
from .run_directory import RunDirectory, StoredRun
from .schema import NamedObject, Section
from .spec import MEASURE, RunSpec, participation_of
from .studies import load_study, runs_of, stored_study

MAX_MODEL_BYTES = 2**36


class MeasureList(Section):
    """Measures as a user gives them: names, or tables with a name and settings."""

    measures: list[Annotated[NamedObject, MEASURE]] = Field(default=list(LIGHT), validate_default=True)


def build_measures(measures: Sequence[object]) -> list[Measure]:
    """Build measures from names and tables; an empty list means those in `LIGHT`.

    Raises InputError, naming the entry, for an invalid one.
    """
    section = validated(MeasureList, {"measures": list(measures)} if measures else {})
    return [measure.object for measure in section.measures]


def run_directories(paths: Sequence[Path]) -> list[RunDirectory]:
    """Return the runs in the folders `paths`; for the folder of a study, all its runs that have a checkpoint.

    Raises InputError for a folder without such a run.
    """
    found: list[RunDirectory] = []
    for path in paths:
        if (path / "study.toml").exists():
            of_path = [directory for _, directory in runs_of(load_study(path), path) if directory.checkpoint]
        else:
            of_path = [RunDirectory(path)]
            of_path[0].spec()  # raises InputError for a folder without a run to measure
        if not of_path:
            raise InputError(f"{path} holds no run with a checkpoint")
        found += of_path
    return found


def load_simulation(directory: RunDirectory, data_dir: str | None = None) -> Simulation:
    """Build the simulation of a run in the state of its newest checkpoint. Raises InputError without a checkpoint."""
    if directory.checkpoint is None:
        raise InputError(f"{directory.path} has no checkpoint")
    sim = _with_data(directory.spec(), data_dir).build()
    sim.load(directory.checkpoint)
    return sim


def measure_run(
    directory: RunDirectory,
    measures: Sequence[Measure],
    max_samples: int,
    data_dir: str | None,
    progress: Progress,
) -> Flatness:
    """Take measures of the model in a run's newest checkpoint.

    The findings of each measure are saved before the next measure is taken.
    """
    sim = load_simulation(directory, data_dir)
    found: list[Finding] = []
    with directory.writing():
        for measure in check_measures(measures, sim.objective.module):
            new = sim.flatness([measure], max_samples, progress).findings
            check_names(found := [*found, *new])
            directory.add_findings(new)
    return Flatness(tuple(directory.findings()))


@dataclass(frozen=True, eq=False)
class ShownRun:
    """A finished run whose model is shown in pictures, and its label there."""

    label: str
    stored: StoredRun
    data_dir: str | None = None  # default: the data folder in the run's configuration

    @cached_property
    def spec(self) -> RunSpec:
        """The configuration of the run, with the data in `data_dir`."""
        return _with_data(self.stored.directory.spec(), self.data_dir)

    @property
    def weights(self) -> Path:
        """The file of the final model. Raises InputError if it is damaged."""
        return self.stored.directory.checksums.check("model.safetensors")

    @property
    def checkpoint(self) -> Path:
        """The checkpoint from which local models are trained. Raises InputError without a checkpoint."""
        found = self.stored.directory.checkpoint
        if found is None:
            raise InputError(f"local: {self.stored.directory.path} has no checkpoint to continue from")
        return found

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The settings and the model's digest; they are equal only for runs with the same model, data and settings."""
        content = hashlib.sha256(read_bytes(self.weights, MAX_MODEL_BYTES)).hexdigest()
        return {"settings": self.stored.settings, "model": content}

    def next_cohort(self) -> Index:
        """Return the clients of the round after the run's last round.

        These are all clients for a private run. If no cohort is listed for that round, the last listed one is returned.
        """
        if self.spec.privacy is not None:  # every client may take part
            return np.arange(self.spec.data.clients)
        rule, t = participation_of(self.spec.participation), int(self.stored.summary["rounds"])
        t = min(t, len(rule.cohorts) - 1) if isinstance(rule, Explicit) else t
        return rule.cohort(t, self.spec.data.clients, generator(self.spec.seed, Purpose.COHORT, t))

    def local_clients(self, number: int) -> Index:
        """Return `number` clients of the next round, evenly spaced in its cohort.

        Runs that differ only in the method have the same clients. Raises InputError without a checkpoint, or if the
        next round has fewer clients.
        """
        cohort = self.next_cohort()
        if number:
            _ = self.checkpoint  # raises InputError if it is missing, before hours of work
        if number > len(cohort):
            raise InputError(f"local = {number} is more than the {len(cohort)} clients of the next round "
                             f"of {self.stored.directory.path}")  # fmt: skip
        return cohort[np.arange(number) * len(cohort) // max(1, number)]


@dataclass
class LoadedRun:
    """The simulation and the local models of the run that was used last.

    Those of earlier runs are dropped, because the clients' records may be large.
    """

    _run: ShownRun | None = None
    _sim: Simulation | None = None
    _local: dict[int, Tensor] = field(default_factory=dict)

    def simulation(self, run: ShownRun) -> Simulation:
        """Return the simulation of `run`, in its state before the first round.

        Once `local` was called for `run`, the simulation is in the state of the newest checkpoint.
        """
        if self._run is not run or self._sim is None:
            self._run = self._sim = None  # the old simulation is freed before the new one is built
            self._local = {}
            self._sim, self._run = run.spec.build(), run
        return self._sim

    def model(self, run: ShownRun) -> Tensor:
        """Load the server's final model of `run`, (d,). Raises InputError if only the clients have models."""
        sim = self.simulation(run)
        if not sim.has_whole_model:
            raise InputError(f"{run.label}: every client has a model of its own, and there is none of the server")
        return sim.objective.show_module(load_model(run.weights, sim.model)).to(sim.w)

    def local(self, run: ShownRun, clients: Index) -> dict[int, Tensor]:
        """Train `clients` in the round that would follow the run's last round; return their models (d,), by client."""
        sim = self.simulation(run)
        if not self._local.keys() >= set(clients.tolist()):
            sim.load(run.checkpoint)
            observer = _LocalModels(set(clients.tolist()))
            sim.dry_round(run.next_cohort(), observer)
            self._local = observer.models
        return {client: self._local[client] for client in clients.tolist()}


@dataclass
class _LocalModels(RoundObserver):
    """An observer of a round that keeps the local models of some clients."""

    wanted: set[int]
    models: dict[int, Tensor] = field(default_factory=dict)

    def done(self, clients: Index, w: Tensor) -> None:
        for client, own in zip(clients.tolist(), w, strict=True):
            if client in self.wanted:
                self.models[client] = own.clone()


def shown_runs(paths: Sequence[Path], data_dir: str | None = None) -> list[ShownRun]:
    """Read the finished runs in the folders `paths`; for the folder of a study, all its finished runs of one seed.

    The seed is that of the study's first finished run. Raises InputError for a folder without a finished run.
    """
    stored: list[StoredRun] = []
    for path in paths:
        if (path / "study.toml").exists():
            _, runs = stored_study(path)
            stored += [run for run in runs if run.seed == runs[0].seed]
        else:
            stored.append(StoredRun.open(path))
            stored[-1].directory.spec()  # raises InputError for a run whose simulation cannot be built again
    runs = list({run.directory.path.resolve(): run for run in stored}.values())
    return [ShownRun(label, run, data_dir) for label, run in zip(_labels(runs), runs, strict=True)]


def _labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return a different label for each run: its method; if methods repeat, with its seed; or else its folder."""
    candidates = [
        [run.method for run in runs],
        [f"{run.method}, seed {run.seed}" for run in runs],
        [run.directory.path.name for run in runs],
    ]
    for names in candidates:
        if len(set(names)) == len(names):
            return [printable(name) for name in names]
    return [printable(str(run.directory.path)) for run in runs]


def _with_data(spec: RunSpec, data_dir: str | None) -> RunSpec:
    """Return `spec` with the data folder `data_dir`; None keeps the data folder of `spec`."""
    return spec.model_copy(update={"data_dir": data_dir or spec.data_dir})
