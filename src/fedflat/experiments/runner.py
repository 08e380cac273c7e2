"""Carries out runs in folders: a run can be stopped and resumed, and a finished run is not computed again.

Several ranks carry out one run together, in a folder that all of them can read and rank 0 writes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep

from ..core.errors import ChangedWarning, InputError
from ..engine.callbacks import Callback, check_callbacks
from ..engine.ranks import ALONE, Ranks
from ..engine.simulation import Round, Simulation
from ..rounds.checkpoint import DamagedError
from ..rounds.private_rounds import logs_in, read_log
from ..rounds.settings import settings_key
from .claims import LEASE, ClaimLostError, ClaimObserver, HeldClaim, Observation
from .interrupt import Interrupted, StopRequest, stop_between_rounds
from .run_directory import RunDirectory, StoredRun, difference
from .spec import RunSpec

CHECK_INTERVAL = 0.5  # seconds between looks at the claim of another machine


class RunObserver:
    """Hooks that are called while runs are carried out. In this class they do nothing; subclasses show the progress.

    An observer is called in the main process, even if workers carry out the runs, and receives the settings of the run.
    A `Callback`, whose hooks have the same names, is called in the process of its run, and receives the simulation.
    """

    def run_started(self, spec: RunSpec, done: int) -> None:
        """React to a run that starts or resumes after `done` rounds, or that is finished: then `done` is its rounds."""

    def round_ended(self, spec: RunSpec, round: Round) -> None:
        """React to a complete round, before it is saved."""

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        """React to the progress of a measure of the final model: `done` of about `total` steps."""

    def run_ended(self, spec: RunSpec, run: StoredRun) -> None:
        """React to a finished run, whose results are written."""

    def run_failed(self, spec: RunSpec, error: Exception) -> None:
        """React to a run of a study that diverged, or that had too little memory; the other runs continue."""

    def run_placed(self, spec: RunSpec, place: str) -> None:
        """React to a run of a study that starts in a process of its own, on the device `place`, such as GPU 2."""


class Forwarding(RunObserver):
    """Forwards every call of a hook to one function, with the name of the hook and its arguments."""

    def __init__(self, forward: Callable[..., None]) -> None:
        for hook in (name for name in vars(RunObserver) if not name.startswith("_")):
            setattr(self, hook, partial(forward, hook))


def together(*observers: RunObserver) -> RunObserver:
    """Return an observer that calls `observers`, one after another."""

    def forward(hook: str, *arguments: object) -> None:
        for observer in observers:
            getattr(observer, hook)(*arguments)

    return Forwarding(forward)


def run(
    spec: RunSpec,
    path: Path,
    observer: RunObserver | None = None,
    strict: bool = False,
    ranks: Ranks = ALONE,
    callbacks: Sequence[Callback] = (),
) -> StoredRun | None:
    """Carry out `spec` in the folder `path`, from its newest undamaged checkpoint if it has one.

    strict: refuse to resume if versions or code have changed since the saved rounds, instead of warning.
    ranks: all ranks must call this function. Rank 0 returns the run, the others None.
    callbacks: as for a `Simulation`. They are not part of the configuration: a run that a callback ends counts as
    finished. If a callback raises an error, the round is saved first, so that the run can be resumed.

    Raises ValueError if the folder cannot be used, NonFiniteError if training diverges, Interrupted after a signal,
    with the last complete round on disk, and RankError if a rank is lost. An error of one rank is raised on all.
    """
    observer = observer if observer and ranks.index == 0 else RunObserver()
    with stop_between_rounds() as request:
        return RunExecution(spec, RunDirectory(path), observer, request, strict, ranks, callbacks).carry_out()


@dataclass(frozen=True)
class RunExecution:
    """The execution of one run in its folder, by this process alone or as one of several ranks."""

    spec: RunSpec
    directory: RunDirectory
    observer: RunObserver
    request: StopRequest
    strict: bool = False
    ranks: Ranks = ALONE
    callbacks: Sequence[Callback] = ()
    observed: Observation | None = None  # the claim on the folder, which may be replaced; None: wait until it may
    lease: float = LEASE  # seconds of silence after which another process may take the run over

    def carry_out(self) -> StoredRun | None:
        """Carry out the run, as `run` does, until it is finished or `request` has a signal."""
        if self.ranks.alone:
            self._carry_out_alone()
        else:
            self._carry_out_with_ranks()
        if self.ranks.index > 0:
            return None
        stored = StoredRun.open(self.directory.path)
        self.observer.run_ended(self.spec, stored)
        return stored

    def _carry_out_alone(self) -> None:
        spec, directory = self.spec, self.directory
        damaged = directory.damaged_files()
        if directory.is_finished and not damaged:
            directory.check_same_run(spec)
            directory.check_same_code(spec, self.strict)
            directory.remove_temporary_files()
            self.observer.run_started(spec, spec.rounds)
            return
        # A mistake in a single run makes no folder. Of a study's runs the claim comes first: others want one, too.
        sim = self._simulation() if self.observed is None else None
        with self._writing() as held, self._failure_recorded(), closing(sim or self._simulation()) as sim:
            directory.remove_damaged(damaged)
            directory.begin(spec, sim)
            directory.check_same_code(spec, self.strict)
            load_newest_checkpoint(sim, directory, self.strict)
            directory.add_segment(sim, spec)
            self._train(sim, held)
            self._finish(sim)

    def _writing(self) -> AbstractContextManager[HeldClaim]:
        """Return the block in which this process writes the folder; first wait until it is known whether it may.

        Raises BusyError if another process writes the folder, and Interrupted after a signal.
        """
        observer, path, observed, has_warned = ClaimObserver(), self.directory.path, self.observed, False
        while observed is None:
            found = observer.look(path)
            if found.is_locked or found.is_alive:
                raise found.busy(path)
            if found.is_free:
                observed = found
            elif self.request.signal_number:
                raise Interrupted(self.request.signal_number, f"nothing was written to {path}")
            else:
                if not has_warned:
                    has_warned = True
                    warnings.warn(f"{found.busy(path)}; waiting for its next heartbeat", ChangedWarning, stacklevel=2)
                sleep(CHECK_INTERVAL)
        return self.directory.writing(observed, self.lease)

    @contextmanager
    def _failure_recorded(self) -> Iterator[None]:
        """Keep the error that ends the block in the folder: `fedflat status` shows it, and `fedflat work` reads it."""
        self.directory.forget_failure()
        try:
            yield
        except (Interrupted, ClaimLostError):
            raise
        except Exception as error:
            with suppress(InputError):  # it would hide the error that is being raised
                self.directory.record_failure(error)
            raise

    def _carry_out_with_ranks(self) -> None:
        """Compute the rounds on all ranks; rank 0 alone measures the final model."""
        spec, directory, ranks = self.spec, self.directory, self.ranks
        held: HeldClaim | None = None
        with ExitStack() as lock:
            with ranks.together():  # an error of rank 0 is raised on all ranks
                if ranks.index == 0:
                    held = lock.enter_context(self._writing())
                    directory.remove_damaged(directory.damaged_files())
                    if directory.has_begun:
                        directory.check_same_run(spec)
                        directory.check_same_code(spec, self.strict)
            if ranks.first(directory.is_finished):
                return
            self._train_with_ranks(held)
            if ranks.index == 0:
                # One process can load all clients' records from the last checkpoint.
                with closing(self._simulation()) as sim:
                    load_newest_checkpoint(sim, directory)
                    self._finish(sim)

    def _train_with_ranks(self, held: HeldClaim | None) -> None:
        """Compute the remaining rounds. Raises InputError unless all ranks have the same settings and checkpoints."""
        spec, directory, ranks = self.spec, self.directory, self.ranks
        first = ranks.first(json.loads(settings_key(spec.decisive())))
        with ranks.together():
            if found := difference(first, json.loads(settings_key(spec.decisive()))):
                raise InputError(f"rank {ranks.index} has other settings than rank 0: {found}")
            sim = spec.build(ranks=ranks)
            sim.callbacks = check_callbacks(self.callbacks)
        with closing(sim):
            names = [path.name for path in directory.checkpoints]
            expected = ranks.first(names)
            with ranks.together():
                if names != expected:
                    raise InputError(
                        f"rank {ranks.index} sees {', '.join(names) or 'no checkpoint'} in {directory.state}, rank 0 "
                        f"{', '.join(expected) or 'none'}; the folder must be on storage that all machines share"
                    )
            load_newest_checkpoint(sim, directory, self.strict)
            sim.prepare()  # all ranks must choose the executor at the same time
            with ranks.together():
                if ranks.index == 0:
                    directory.begin(spec, sim)
                    directory.add_segment(sim, spec)
            self._train(sim, held)

    def _simulation(self) -> Simulation:
        """Build the simulation of this process, which may keep a file of clients' records in the run's folder."""
        sim = self.spec.build(self.directory.state)
        sim.callbacks = check_callbacks(self.callbacks)
        return sim

    def _train(self, sim: Simulation, held: HeldClaim | None) -> None:
        """Compute the remaining rounds and save checkpoints. Raises Interrupted after a signal to any rank.

        held: the claim of rank 0.
        """
        spec, report = self.spec, held.report if held else lambda done, rounds: None
        report(sim.t, spec.rounds)
        self.observer.run_started(spec, sim.t)
        if sim.t == 0 and sim.has_secret_noise:
            self._save(sim)  # without the key, noise that was drawn cannot be drawn again
        while not sim.is_over():
            result = sim.round()
            self.observer.round_ended(spec, result)
            report(sim.t, spec.rounds)
            signal_number, is_last = self.ranks.most(self.request.signal_number or 0), sim.is_over()
            is_due = sim.t % spec.checkpoint_every == 0 or is_last or signal_number
            if is_due:
                self._save(sim)
            try:
                sim.call_back(result)
            except Exception:
                if not is_due:
                    self._save(sim)
                raise
            if signal_number and not is_last:
                raise Interrupted(signal_number, f"round {sim.t} of {spec.rounds} of {spec.title} is saved")

    def _save(self, sim: Simulation) -> None:
        if self.ranks.index == 0:
            self.directory.save(sim)
        else:
            sim.save(self.directory.state)

    def _finish(self, sim: Simulation) -> None:
        """Take the measures of the final model and write the results. Raises Interrupted after a signal."""
        spec, request = self.spec, self.request

        def progress(name: str, done: int, total: int) -> None:
            self.observer.measuring(spec, name, done, total)
            if request.signal_number:
                raise Interrupted(
                    request.signal_number, f"all rounds of {spec.title} are saved, {name} was being measured"
                )

        result = sim.result([one.object for one in spec.flatness], progress)
        self.directory.finish(result, spec.targets)
        sim.call_back(result)


def load_newest_checkpoint(sim: Simulation, directory: RunDirectory, strict: bool = False) -> None:
    """Load the newest undamaged checkpoint of `directory` into `sim`, if any, and warn of damaged newer ones.

    Raises InputError if all checkpoints are damaged, if rounds with differential privacy are in the log but no
    checkpoint is left, and in the cases in which `Simulation.load` raises it. All ranks must call this function.
    """
    damaged: list[DamagedError] = []
    for path in reversed(directory.checkpoints):
        try:
            sim.load(path, strict)
        except DamagedError as error:
            damaged.append(error)
            continue
        if damaged:
            warnings.warn(f"{damaged[0]}; resuming from {path.name} instead", ChangedWarning, stacklevel=2)
        return
    if damaged:
        raise InputError(
            f"{damaged[0]}; all {len(damaged)} checkpoints are damaged; delete {directory.state} to start over"
        )
    for log in logs_in(directory.state):
        if read_log(log):  # of released sums, whose noise can be repeated only from a checkpoint
            raise InputError(f"{directory.state} has lost the checkpoint that can repeat the noise of the rounds in "
                             f"{log.name}; choose another folder")  # fmt: skip
