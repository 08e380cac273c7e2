"""What becomes of the runs of a study that processes on one or several machines carry out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..core.errors import InputError
from ..rounds.checkpoint import round_of
from .claims import Claim, ClaimObserver
from .run_directory import RunDirectory
from .run_queue import Runs
from .studies import load_study, runs_of

State = Literal["finished", "running", "silent", "failed", "stopped", "waiting"]


@dataclass(frozen=True)
class RunStatus:
    """The state of one run, as its folder tells it."""

    title: str
    state: State  # silent: its process has shown no sign for its lease; stopped: begun, and no process carries it out
    done: int  # finished rounds that are known; all of a finished run
    rounds: int  # planned rounds
    claim: Claim | None = None  # of the process that carries it out
    error: str | None = None  # with which the run ended, if it has failed


def runs_in(folder: Path) -> Runs:
    """Return the runs of the study in `folder`, or the run in it. Raises InputError if it holds neither."""
    if (folder / "tune.toml").exists():
        raise InputError(f"{folder} holds a search; `fedflat tune` itself shows its progress")
    if (folder / "study.toml").exists():
        return runs_of(load_study(folder), folder)
    directory = RunDirectory(folder)
    return [(directory.spec(), directory)]


def run_statuses(runs: Runs, observer: ClaimObserver) -> list[RunStatus]:
    """Return the state of each run. `observer`: has looked at the claims before, so that it notices silence."""
    return [_status(spec.title, spec.rounds, directory, observer) for spec, directory in runs]


def _status(title: str, rounds: int, directory: RunDirectory, observer: ClaimObserver) -> RunStatus:
    if directory.is_finished:
        return RunStatus(title, "finished", rounds, rounds)
    observed = observer.look(directory.path)
    if observed.claim is not None and not observed.is_free:
        return RunStatus(title, "running", observed.claim.done, rounds, observed.claim)
    done = _saved_rounds(directory)
    if observed.claim is not None and not observed.has_ended:
        return RunStatus(title, "silent", max(done, observed.claim.done), rounds, observed.claim)
    if (error := directory.failure) is not None:
        return RunStatus(title, "failed", done, rounds, error=error)
    return RunStatus(title, "stopped" if directory.has_begun else "waiting", done, rounds)


def _saved_rounds(directory: RunDirectory) -> int:
    """Return the number of rounds of the newest checkpoint, by its name."""
    with suppress(OSError):
        return (round_of(directory.checkpoint) if directory.checkpoint else 0) or 0
    return 0


def counts(statuses: Sequence[RunStatus]) -> dict[State, int]:
    """Return how many runs are in each state, states without a run left out."""
    states: tuple[State, ...] = ("finished", "running", "silent", "stopped", "waiting", "failed")
    numbers = {state: sum(one.state == state for one in statuses) for state in states}
    return {state: number for state, number in numbers.items() if number}
