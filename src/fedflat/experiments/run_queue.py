"""The runs of a study that a process may still have to carry out, while other processes take some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..core.errors import InputError, NonFiniteError
from .claims import LEASE, ClaimObserver, Observation
from .run_directory import RunDirectory
from .spec import RunSpec

Runs: TypeAlias = Sequence[tuple[RunSpec, RunDirectory]]


@dataclass(frozen=True)
class QueuedRun:
    """A run that no living process holds."""

    spec: RunSpec
    directory: RunDirectory
    observed: Observation  # its claim, which may be replaced


class RunQueue:
    """Runs in the order in which they are carried out; those that other processes carry out are left to them.

    A queue of one process among others (`shared`) leaves out finished runs and runs that failed, and ends when all that
    is left is in the hands of living processes. Otherwise it ends when every run is finished.
    """

    def __init__(self, runs: Runs, shared: bool = False, lease: float = LEASE) -> None:
        """Queue `runs`. lease: seconds of silence after which others may take over a run of this process."""
        self._left, self.shared, self.lease = list(runs), shared, lease
        self._observer = ClaimObserver()
        self._others_go_on = False  # whether the last `next` found that living processes hold all runs that are left

    def __len__(self) -> int:
        """Return how many runs are left."""
        return len(self._left)

    @property
    def device(self) -> str:
        """The setting `device` of the first run that is left."""
        return self._left[0][0].device

    @property
    def left_out(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The errors of a run after which the other runs go on."""
        return (NonFiniteError, InputError, RuntimeError, OSError) if self.shared else NonFiniteError

    def next(self) -> QueuedRun | None:
        """Take the first run that no living process holds out of the queue; None if there is none now."""
        self._others_go_on, all_alive = False, True
        for run in list(self._left):
            spec, directory = run
            if self.shared and (directory.is_finished or directory.failure):
                self._left.remove(run)
                continue
            observed = self._observer.look(directory.path)
            if observed.is_free or directory.is_finished:
                self._left.remove(run)
                return QueuedRun(spec, directory, observed)
            all_alive &= observed.is_alive
        self._others_go_on = all_alive
        return None

    def put_back(self, run: QueuedRun) -> None:
        """Queue a run again that another process has claimed first, or has taken over."""
        self._left.append((run.spec, run.directory))

    @property
    def is_over(self) -> bool:
        """Whether `next` will have no more runs."""
        return not self._left or (self.shared and self._others_go_on)
