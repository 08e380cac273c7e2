"""Carries out runs in folders: resumable, interruptible, and never computing a finished run again."""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path
from typing import Protocol

from ..core.errors import ChangedWarning, InputError, NonFiniteError
from ..engine.ranks import ALONE, Ranks
from ..engine.simulation import Round, Simulation
from ..rounds.checkpoint import DamagedError
from .interrupt import Interrupted, StopRequest, stop_between_rounds
from .run_directory import RunDirectory, StoredRun
from .spec import RunSpec, build_measure


class Watcher(Protocol):
    """Is told how the work goes on."""

    def run_started(self, spec: RunSpec, done: int) -> None:
        """A run starts, or goes on after `done` rounds; `done == spec.rounds` if it was finished before."""

    def round_done(self, spec: RunSpec, result: Round) -> None:
        """A round is over."""

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        """After the last round, the measure `name` is at step `done` of about `total`."""

    def run_finished(self, spec: RunSpec, run: StoredRun) -> None:
        """A run is over and on disk."""

    def run_failed(self, spec: RunSpec, error: NonFiniteError) -> None:
        """A run of a study diverged; the others go on."""


class Silent:
    """A watcher that says nothing."""

    def run_started(self, spec: RunSpec, done: int) -> None: ...

    def round_done(self, spec: RunSpec, result: Round) -> None: ...

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None: ...

    def run_finished(self, spec: RunSpec, run: StoredRun) -> None: ...

    def run_failed(self, spec: RunSpec, error: NonFiniteError) -> None: ...


def run(spec: RunSpec, path: Path, watcher: Watcher | None = None, strict: bool = False) -> StoredRun:
    """Carry out `spec` in the folder `path`, going on from its newest whole checkpoint if it has one.

    strict: refuse to go on with other versions or another code than the rounds so far, instead of warning.

    Raises ValueError if the folder cannot be used, NonFiniteError if training diverges, and
    Interrupted after a signal, with the last full round on disk.
    """
    with stop_between_rounds() as request:
        return carry_out(spec, RunDirectory(path), watcher or Silent(), request, strict)


def carry_out(
    spec: RunSpec, directory: RunDirectory, watcher: Watcher, request: StopRequest, strict: bool = False
) -> StoredRun:
    """Carry out `spec` in `directory`, as `run` does, until `request` says to stop."""
    damaged = directory.damaged()
    if directory.is_finished and not damaged:
        directory.refuse_other(spec)
        directory.clear()
        watcher.run_started(spec, spec.rounds)
    else:
        sim = spec.build(directory.state)
        with directory.writing(), closing(sim):
            directory.give_up(damaged)
            directory.begin(spec, sim)
            go_on(sim, directory, strict)
            directory.add_segment(sim)
            train(spec, sim, directory, watcher, request)
            finish(spec, sim, directory, watcher, request)
    return told(spec, directory, watcher)


def go_on(sim: Simulation, directory: RunDirectory, strict: bool = False) -> None:
    """Load the newest whole checkpoint of `directory` into `sim`, if there is one; damaged ones are named in a warning.

    Raises InputError if all are damaged, or as `Simulation.load` does. Of several ranks, all must call this.
    """
    damaged: list[DamagedError] = []
    for path in reversed(directory.checkpoints):
        try:
            sim.load(path, strict)
        except DamagedError as error:
            damaged.append(error)
            continue
        if damaged:
            warnings.warn(f"{damaged[0]}; going on from {path.name} instead", ChangedWarning, stacklevel=2)
        return
    if damaged:
        raise InputError(
            f"{damaged[0]}; of {len(damaged)} kept none is whole: to begin again, remove {directory.state}"
        )


def train(
    spec: RunSpec,
    sim: Simulation,
    directory: RunDirectory,
    watcher: Watcher,
    request: StopRequest,
    ranks: Ranks = ALONE,
) -> None:
    """The rounds that are left, with checkpoints. Raises Interrupted if this process, or another rank, is to stop."""
    watcher.run_started(spec, sim.t)
    for result in sim:
        watcher.round_done(spec, result)
        asked = ranks.most(request.signal_number or 0)
        if sim.t % spec.checkpoint_every == 0 or sim.t == spec.rounds or asked:
            directory.save(sim) if ranks.index == 0 else sim.save(directory.state)
        if asked and sim.t < spec.rounds:
            raise Interrupted(asked, f"round {sim.t} of {spec.rounds} of {spec.label} is saved")


def finish(spec: RunSpec, sim: Simulation, directory: RunDirectory, watcher: Watcher, request: StopRequest) -> None:
    """The measures and the summary at the end."""

    def progress(name: str, done: int, total: int) -> None:
        watcher.measuring(spec, name, done, total)
        if request.signal_number:
            raise Interrupted(request.signal_number, f"all rounds of {spec.label} are saved, {name} was being measured")

    measures = [build_measure(one) for one in spec.flatness]
    directory.finish(sim.result(measures, progress), spec.targets)


def told(spec: RunSpec, directory: RunDirectory, watcher: Watcher) -> StoredRun:
    """A finished run, of which the watcher is told."""
    stored = StoredRun.open(directory.path)
    watcher.run_finished(spec, stored)
    return stored
