"""Carries out runs in folders: a run can be stopped and resumed, and a finished one is not computed again.

Several ranks carry out one run together, in a folder that all of them can read and rank 0 writes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ..core.errors import ChangedWarning, InputError, NonFiniteError
from ..engine.arguments import check_callbacks
from ..engine.callbacks import Callback
from ..engine.ranks import ALONE, Ranks
from ..engine.simulation import Round, Simulation
from ..rounds.checkpoint import DamagedError
from ..rounds.settings import settings_key
from .interrupt import Interrupted, StopRequest, stop_between_rounds
from .run_directory import RunDirectory, StoredRun, difference
from .spec import RunSpec, build_measure


class RunObserver:
    """Its methods are called while runs are carried out; here they do nothing. Subclasses show or write the progress.

    It sees the runs of a study from outside, whichever processes carry them out. What looks into a simulation, or ends
    a run, is a `Callback`, which is in the process of one run.
    """

    def run_started(self, spec: RunSpec, done: int) -> None:
        """A run starts, or resumes after `done` rounds; `done == spec.rounds` if it was finished before."""

    def round_done(self, spec: RunSpec, result: Round) -> None:
        """A round is finished."""

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        """After the last round, the measure `name` has done `done` of about `total` steps."""

    def run_finished(self, spec: RunSpec, run: StoredRun) -> None:
        """A run is finished and on disk."""

    def run_failed(self, spec: RunSpec, error: NonFiniteError) -> None:
        """A run of a study diverged; the other runs continue."""


class Observers(RunObserver):
    """Several observers, called one after another."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def run_started(self, spec: RunSpec, done: int) -> None:
        for one in self._observers:
            one.run_started(spec, done)

    def round_done(self, spec: RunSpec, result: Round) -> None:
        for one in self._observers:
            one.round_done(spec, result)

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        for one in self._observers:
            one.measuring(spec, name, done, total)

    def run_finished(self, spec: RunSpec, run: StoredRun) -> None:
        for one in self._observers:
            one.run_finished(spec, run)

    def run_failed(self, spec: RunSpec, error: NonFiniteError) -> None:
        for one in self._observers:
            one.run_failed(spec, error)


def run(
    spec: RunSpec,
    path: Path,
    observer: RunObserver | None = None,
    strict: bool = False,
    ranks: Ranks = ALONE,
    callbacks: Sequence[Callback] = (),
) -> StoredRun | None:
    """Carry out `spec` in the folder `path`, from its newest whole checkpoint if it has one.

    strict: refuse to resume with other versions or other code than the rounds so far, instead of warning.
    ranks: all of them must call this. Rank 0 returns the run, the others None.
    callbacks: as of a `Simulation`. They are no part of the configuration: a run that one of them has ended is
    finished. If one raises an error, the round before it is saved, and the run goes on from there when it is resumed.

    Raises ValueError if the folder cannot be used, NonFiniteError if training diverges, Interrupted after a signal,
    when the last full round is on disk, and RankError if a rank is lost. An error of one rank is raised on all.
    """
    directory = RunDirectory(path)
    observer = observer if observer and ranks.index == 0 else RunObserver()
    with stop_between_rounds() as request:
        if ranks.alone:
            return carry_out(spec, directory, observer, request, strict, callbacks)
        return _carry_out_with_ranks(spec, directory, observer, request, strict, ranks, callbacks)


def carry_out(
    spec: RunSpec,
    directory: RunDirectory,
    observer: RunObserver,
    request: StopRequest,
    strict: bool = False,
    callbacks: Sequence[Callback] = (),
) -> StoredRun:
    """Carry out `spec` in `directory`, as `run` does, until it is finished or `request` has a signal."""
    damaged = directory.damaged_files()
    if directory.is_finished and not damaged:
        directory.check_same_run(spec)
        directory.check_same_code(spec, strict)
        directory.remove_temporary_files()
        observer.run_started(spec, spec.rounds)
    else:
        sim = spec.build(directory.state)
        sim.callbacks = check_callbacks(callbacks)
        with directory.writing(), closing(sim):
            directory.remove_damaged(damaged)
            directory.begin(spec, sim)
            directory.check_same_code(spec, strict)
            load_newest_checkpoint(sim, directory, strict)
            directory.add_segment(sim, spec)
            train(spec, sim, directory, observer, request)
            finish(spec, sim, directory, observer, request)
    return open_finished(spec, directory, observer)


def _carry_out_with_ranks(
    spec: RunSpec,
    directory: RunDirectory,
    observer: RunObserver,
    request: StopRequest,
    strict: bool,
    ranks: Ranks,
    callbacks: Sequence[Callback],
) -> StoredRun | None:
    """`carry_out` as one of several ranks: all compute the rounds, and rank 0 alone measures the final model."""
    with ExitStack() as lock:
        with ranks.together():  # an error of rank 0 is raised on all ranks
            if ranks.index == 0:
                lock.enter_context(directory.writing())
                directory.remove_damaged(directory.damaged_files())
                if directory.has_begun:
                    directory.check_same_run(spec)
                    directory.check_same_code(spec, strict)
        if not ranks.first(directory.is_finished):
            _train_with_ranks(spec, directory, observer, request, strict, ranks, callbacks)
            if ranks.index == 0:
                # In one process, which has all clients' records from the last checkpoint.
                with closing(spec.build(directory.state)) as sim:
                    sim.callbacks = check_callbacks(callbacks)
                    load_newest_checkpoint(sim, directory)
                    finish(spec, sim, directory, observer, request)
        return open_finished(spec, directory, observer) if ranks.index == 0 else None


def _train_with_ranks(
    spec: RunSpec,
    directory: RunDirectory,
    observer: RunObserver,
    request: StopRequest,
    strict: bool,
    ranks: Ranks,
    callbacks: Sequence[Callback],
) -> None:
    """Compute the rounds that are left. Raises InputError unless all ranks see the checkpoints that rank 0 sees."""
    first = ranks.first(json.loads(settings_key(spec.decisive())))
    with ranks.together():
        if found := difference(first, json.loads(settings_key(spec.decisive()))):
            raise InputError(f"rank {ranks.index} has other settings than rank 0: {found}")
        sim = spec.build(ranks=ranks)
        sim.callbacks = check_callbacks(callbacks)
    with closing(sim):
        names = [path.name for path in directory.checkpoints]
        expected = ranks.first(names)
        with ranks.together():
            if names != expected:
                raise InputError(
                    f"rank {ranks.index} sees {', '.join(names) or 'no checkpoint'} in {directory.state}, rank 0 "
                    f"{', '.join(expected) or 'none'}; the folder must be on storage that all machines share"
                )
        load_newest_checkpoint(sim, directory, strict)
        sim.prepare()  # all ranks must choose the executor at the same time
        with ranks.together():
            if ranks.index == 0:
                directory.begin(spec, sim)
                directory.add_segment(sim, spec)
        train(spec, sim, directory, observer, request, ranks)


def load_newest_checkpoint(sim: Simulation, directory: RunDirectory, strict: bool = False) -> None:
    """Load the newest whole checkpoint of `directory` into `sim`, if there is one, and warn of damaged newer ones.

    Raises InputError if all are damaged, or gone after private rounds, or as `Simulation.load` does. Of several ranks,
    all must call this.
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
    directory.check_nothing_was_released()


def train(
    spec: RunSpec,
    sim: Simulation,
    directory: RunDirectory,
    observer: RunObserver,
    request: StopRequest,
    ranks: Ranks = ALONE,
) -> None:
    """Compute the rounds that are left and save checkpoints. Raises Interrupted after a signal to any rank."""

    def save() -> None:
        directory.save(sim) if ranks.index == 0 else sim.save(directory.state)

    observer.run_started(spec, sim.t)
    if sim.t == 0 and sim.has_secret_noise:
        save()  # without the key, noise that was drawn cannot be drawn again
    while not sim.is_over():
        result = sim.round()
        observer.round_done(spec, result)
        signal_number, is_last = ranks.most(request.signal_number or 0), sim.is_over()
        is_due = sim.t % spec.checkpoint_every == 0 or is_last or signal_number
        if is_due:
            save()
        try:
            sim.call_back(result)
        except Exception:
            if not is_due:
                save()
            raise
        if signal_number and not is_last:
            raise Interrupted(signal_number, f"round {sim.t} of {spec.rounds} of {spec.title} is saved")


def finish(
    spec: RunSpec, sim: Simulation, directory: RunDirectory, observer: RunObserver, request: StopRequest
) -> None:
    """Take the measures of the final model and write the results. Raises Interrupted after a signal."""

    def progress(name: str, done: int, total: int) -> None:
        observer.measuring(spec, name, done, total)
        if request.signal_number:
            raise Interrupted(request.signal_number, f"all rounds of {spec.title} are saved, {name} was being measured")

    measures = [build_measure(one) for one in spec.flatness]
    result = sim.result(measures, progress)
    directory.finish(result, spec.targets)
    for callback in sim.callbacks:
        callback.run_ended(result)


def open_finished(spec: RunSpec, directory: RunDirectory, observer: RunObserver) -> StoredRun:
    """Open a run that is finished, and report it to the observer."""
    stored = StoredRun.open(directory.path)
    observer.run_finished(spec, stored)
    return stored
