"""Carries out runs and studies in folders: resumable, interruptible, and never computing a finished run again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from ..core.errors import InputError
from ..engine.cohort import NonFiniteError
from ..engine.simulation import Round, Simulation
from ..files import write_atomically
from .directory import RunDirectory, StoredRun, difference
from .interrupt import Interrupted, StopRequest, stop_between_rounds
from .spec import RunSpec, StudySpec, build_measure


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


def run(spec: RunSpec, path: Path, watcher: Watcher | None = None) -> StoredRun:
    """Carry out `spec` in the folder `path`, going on from its checkpoint if it has one.

    Raises ValueError if the folder cannot be used, NonFiniteError if training diverges, and
    Interrupted after a signal, with the last full round on disk.
    """
    with stop_between_rounds() as request:
        return _run(spec, RunDirectory(path), watcher or Silent(), request)


def study(spec: StudySpec, path: Path, watcher: Watcher | None = None) -> list[StoredRun]:
    """Carry out every run of `spec` below the folder `path` and give those that finished.

    A run that diverges is told to the watcher and does not stop the others. Raises InputError if the
    folder cannot be used, NonFiniteError if no run finished, and Interrupted after a signal.
    """
    watcher = watcher or Silent()
    finished, failure = [], None
    with stop_between_rounds() as request:
        begin_study(spec, path)
        for one in spec.runs():
            try:
                finished.append(_run(one, run_directory(one, path), watcher, request))
            except NonFiniteError as error:
                failure = error
                watcher.run_failed(one, error)
    if failure and not finished:
        raise failure
    return finished


def run_directory(spec: RunSpec, study_path: Path) -> RunDirectory:
    """Where a study keeps one of its runs; the same settings always lead to the same folder."""
    return RunDirectory(study_path / "runs" / f"{spec.label}-{spec.digest()}")


def begin_study(spec: StudySpec, path: Path) -> None:
    """Make the study's folder and write its configuration.

    Raises InputError if it cannot be written, or holds a run, or a study that differs in more than
    its methods, seeds and protocol, by which a study may grow.
    """
    if (path / "config.toml").exists():
        raise InputError(f"--out {path} holds a run; choose another folder for a study")
    if (path / "study.toml").exists():
        found = difference(_lasting(StudySpec.load(path / "study.toml")), _lasting(spec))
        if found:
            raise InputError(f"--out {path} holds another study: {found}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "study.toml", lambda file: file.write_text(spec.to_toml()))
    except OSError as error:
        raise InputError(f"--out {path} cannot be written: {error.strerror}") from error


def _lasting(spec: StudySpec) -> dict[str, Any]:
    """The settings that stay when a study grows."""
    return {name: value for name, value in spec.decisive().items() if name not in ("methods", "seeds", "protocol")}


def stored_study(path: Path) -> tuple[StudySpec, list[StoredRun]]:
    """A study's configuration and its finished runs. Raises ValueError if `path` holds none."""
    spec = StudySpec.load(path / "study.toml")
    directories = [run_directory(one, path) for one in spec.runs()]
    runs = [StoredRun(directory) for directory in directories if directory.is_finished]
    if not runs:
        raise InputError(f"{path} holds no finished run; continue the study with `fedflat resume {path}`")
    return spec, runs


def _run(spec: RunSpec, directory: RunDirectory, watcher: Watcher, request: StopRequest) -> StoredRun:
    if directory.is_finished:
        directory.refuse_other(spec)
        watcher.run_started(spec, spec.rounds)
    else:
        sim = spec.build(directory.state)
        with directory.writing(), closing(sim):
            directory.begin(spec, sim)
            _train(spec, sim, directory, watcher, request)
    stored = StoredRun.open(directory.path)
    watcher.run_finished(spec, stored)
    return stored


def _train(spec: RunSpec, sim: Simulation, directory: RunDirectory, watcher: Watcher, request: StopRequest) -> None:
    """The rounds that are left, with checkpoints, and the summary at the end."""
    if directory.checkpoint:
        sim.load(directory.checkpoint)
    watcher.run_started(spec, sim.t)
    for result in sim:
        watcher.round_done(spec, result)
        if sim.t % spec.checkpoint_every == 0 or sim.t == spec.rounds or request.signal_number:
            directory.save(sim)
        if request.signal_number and sim.t < spec.rounds:
            raise Interrupted(request.signal_number, f"round {sim.t} of {spec.rounds} of {spec.label} is saved")
    measures = [build_measure(one) for one in spec.flatness]

    def told(name: str, done: int, total: int) -> None:
        watcher.measuring(spec, name, done, total)
        if request.signal_number:
            raise Interrupted(request.signal_number, f"all rounds of {spec.label} are saved, {name} was being measured")

    directory.finish(sim.result(measures, told), spec.targets)
