"""Runs of a study at the same time, each in a process of its own."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait

import torch

from ..core.errors import NonFiniteError
from ..engine.child_process import Child
from ..engine.workers import WorkerError
from .interrupt import Interrupted, StopRequest
from .messages import Commission, Ended, Event
from .run_directory import RunDirectory
from .runner import RunObserver
from .spec import RunSpec

Runs = Sequence[tuple[RunSpec, RunDirectory]]
ALERT = 0.2  # seconds after which a signal is passed on, at the latest
FAREWELL = 5.0  # seconds for a process to end whose channel is closed


class SideBySide:
    """At most `number` processes that carry out runs; they end with this object's work, and with this process."""

    def __init__(self, number: int, watcher: RunObserver, request: StopRequest, strict: bool = False) -> None:
        self._number, self._watcher, self._request, self._strict = number, watcher, request, strict
        self._busy: dict[Connection, tuple[Child, RunSpec]] = {}
        self._stopping = False
        self._failures: list[NonFiniteError] = []
        self._error: Exception | None = None

    def carry_out(self, runs: Runs) -> list[NonFiniteError]:
        """Carry out the runs, and give the errors of those that diverged.

        After a signal, or an error of another kind, those under way stop after a round and are saved; then it raises
        Interrupted or that error.
        """
        waiting = deque(runs)
        try:
            for _ in range(min(self._number, len(waiting))):
                self._hand_out(self._started(), waiting)
            while self._busy:
                self._listen(waiting)
        finally:
            for child, _ in self._busy.values():
                child.end()
        if self._error is not None:
            raise self._error
        if self._request.signal_number:
            raise Interrupted(self._request.signal_number, "the last round of every run that was under way is saved")
        return self._failures

    def _started(self) -> Child:
        share = max(1, torch.get_num_threads() // self._number)
        return Child(f"{__package__}.run_worker", threads=share)

    def _hand_out(self, child: Child, waiting: deque[tuple[RunSpec, RunDirectory]]) -> None:
        """Have `child` carry out the next run, or end if there is none."""
        if not waiting or self._stopping:
            child.end(FAREWELL)
            return
        spec, directory = waiting.popleft()
        self._busy[child.channel] = child, spec
        child.tell(Commission(spec.to_toml(), directory.path, self._strict))

    def _listen(self, waiting: deque[tuple[RunSpec, RunDirectory]]) -> None:
        """Hear what there is to hear, and look whether all shall stop."""
        for child, _ in self._busy.values():
            child.end_if_stopped()
        for channel in [one for one in wait(list(self._busy), ALERT) if isinstance(one, Connection)]:
            child, spec = self._busy[channel]
            message = self._heard(channel)
            if isinstance(message, Event):
                getattr(self._watcher, message.name)(spec, *message.content)
                continue
            del self._busy[channel]
            if message is None:
                self._take_end(child, spec)
            else:
                self._take(message, spec)
                self._hand_out(child, waiting)
        if not self._stopping and (self._error is not None or self._request.signal_number):
            self._stop()

    def _heard(self, channel: Connection) -> Event | Ended | None:
        """The next message; None from a process that has ended."""
        try:
            message: Event | Ended = channel.recv()
        except (EOFError, OSError):
            return None
        return message

    def _take(self, ended: Ended, spec: RunSpec) -> None:
        if isinstance(ended.error, NonFiniteError):
            self._failures.append(ended.error)
            self._watcher.run_failed(spec, ended.error)
        elif ended.error is not None:
            self._error = ended.error

    def _take_end(self, child: Child, spec: RunSpec) -> None:
        """A process has ended by itself; one that is asked to stop may, before it has begun."""
        how = child.end(FAREWELL)
        if self._stopping:
            return
        self._error = WorkerError(
            f"the process of {spec.label} {how} (is memory short?); its last checkpoint is good, and the same command "
            "goes on from there"
        )

    def _stop(self) -> None:
        """Ask all that are under way to stop after a round."""
        self._stopping = True
        for child, _ in self._busy.values():
            child.signal(self._request.signal_number or signal.SIGTERM)
