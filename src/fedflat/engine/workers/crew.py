"""Hands jobs to worker processes, and replaces those that end."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from ...data.federated import Index
from ..child_process import Child
from .board import Answer, Assignment

FAREWELL = 5.0  # seconds for a process to end whose channel is closed
LOOK = 1.0  # seconds between looks whether a process that says nothing is stopped
NAMED = 5  # clients in a message


class WorkerError(RuntimeError):
    """A worker process has ended and is not replaced; the message says how, and which clients it had."""


@dataclass
class Job:
    """An assignment on its way."""

    assignment: Assignment
    answer: Answer | None = None
    ends: int = 0  # processes that have ended over it


class Crew:
    """At most `number` processes. They end with this object, when it is closed, and when this process ends."""

    def __init__(self, number: int, new: Callable[[], Child]) -> None:
        self._number, self._new = number, new
        self._waiting: deque[Job] = deque()  # jobs that nobody has
        self._idle: list[Child] = []
        self._busy: dict[Connection, tuple[Child, Job | None]] = {}  # by channel; without a job: getting ready
        self._all: set[Child] = set()
        self._finalizer = weakref.finalize(self, _end, self._all)

    def start(self, number: int) -> None:
        """Start so many processes, and wait until one is ready. Raises the error for which none can be."""
        try:
            for _ in range(min(number, self._number) - len(self._all)):
                self._start()
            while not self._idle:
                self.listen()
        except BaseException:
            self.close()
            raise

    def take(self, job: Job) -> None:
        """Have `job` done by the next process that has nothing to do."""
        self._waiting.append(job)
        self._hand_out()

    def listen(self) -> None:
        """Wait until a process has something to say.

        Raises WorkerError if one ends while it gets ready, or over a job that has ended another one before.
        """
        while not (heard := wait(list(self._busy), LOOK)):
            for process, _ in self._busy.values():
                process.end_if_stopped()
        for channel in [channel for channel in self._busy if channel in heard]:
            process, job = self._busy.pop(channel)
            try:
                answer: Answer = channel.recv()
            except (EOFError, OSError):
                self._give_back(job, process)
                continue
            self._idle.append(process)
            if job is not None:
                job.answer = answer
            elif answer.error is not None:
                raise answer.error
        self._hand_out()

    def close(self) -> None:
        """End all processes; what they have in hand is lost."""
        _end(self._all)
        self._waiting.clear()
        self._idle.clear()
        self._busy.clear()

    def _start(self) -> None:
        process = self._new()
        self._all.add(process)
        self._busy[process.channel] = process, None

    def _hand_out(self) -> None:
        """Give jobs to those who have none; start another process for each job that is left, if there may be one."""
        while self._waiting and self._idle:
            process = self._idle.pop()
            if process.lives:
                job = self._waiting.popleft()
                self._busy[process.channel] = process, job
                process.tell(job.assignment)
            else:  # it has ended since its last job, which is no fault of the next
                self._all.discard(process)
                process.end()
        coming = sum(job is None for _, job in self._busy.values())
        for _ in range(min(len(self._waiting) - coming, self._number - len(self._all))):
            self._start()

    def _give_back(self, job: Job | None, process: Child) -> None:
        """Have the job of a process that has ended done by another one."""
        self._all.discard(process)
        how = process.end(FAREWELL)
        if job is None:
            raise WorkerError(f"worker process {process.number} {how} before it was ready")
        job.ends += 1
        if job.ends > 1:
            clients, t = job.assignment.clients, job.assignment.ctx.t
            raise WorkerError(
                f"worker process {process.number} {how} while it trained {_named(clients)} in round {t}, as did the "
                "one before it (is memory short?)"
            )
        self._waiting.appendleft(job)


def _named(clients: Index) -> str:
    """The clients in words."""
    shown = ", ".join(map(str, clients[:NAMED]))
    more = f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    return f"client{'s' if len(clients) > 1 else ''} {shown}{more}"


def _end(processes: set[Child]) -> None:
    """End processes that are not needed any more."""
    while processes:
        processes.pop().end()
