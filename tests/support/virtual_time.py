"""Virtual time in one thread: clocks that a test moves, what happens at which time, and processes that are killed."""

from __future__ import annotations

import datetime as real_datetime
import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app.message import message as flower_message

from fedflat.federation.flower import message_queue
from fedflat.federation.flower.event_log import EventLog

EPOCH = 1_800_000_000.0  # seconds since 1970 at which virtual time begins
SERVER = "server"  # the process of the server; all others are clients' names
OPERATIONS = ("open", "fsync", "replace", "rename", "unlink", "mkdir", "chmod")


class KilledError(BaseException):
    """The process that runs is gone: what comes after this in it never happens."""


class BrokenPromise(BaseException):
    """Something happened that must not."""


class VirtualTime:
    """The time, what is to happen later, and the clocks of all machines.

    A machine has a monotonic clock, which begins anew at each start, and a clock of the time of day, which may jump.
    """

    def __init__(self) -> None:
        self.now = 0.0  # seconds, of nobody's clock
        self.process = SERVER  # which process runs
        self.server_starts = 0  # how many times the server was started
        self.is_late = False  # whether a thread runs whose reply came slowly
        self.limits: dict[str, float] = {}  # by when what must have ended
        self.trace: list[str] = []
        self.offsets: dict[str, float] = {}  # of clocks of the time of day, by process
        self._booted: dict[str, float] = {}  # when each monotonic clock said 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now:9.2f}  {what}")

    def boot(self, process: str, uptime: float) -> None:
        """Start a machine whose monotonic clock says `uptime`."""
        self._booted[process] = self.now - uptime

    def monotonic(self) -> float:
        """Seconds since the machine of the running process has started."""
        return self.now - self._booted.get(self.process, 0.0)

    def wall(self) -> float:
        """Seconds since 1970 by the clock of the running process's machine."""
        return self.wall_of(self.process)

    def wall_of(self, process: str) -> float:
        """The same by the clock of the machine of some process."""
        return EPOCH + self.now + self.offsets.get(process, 0.0)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have `act` called after so many seconds."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), act))

    def pass_time(self, seconds: float, until: Callable[[], object] = lambda: False) -> None:
        """Let time pass, with all that is due meanwhile, until `until` is true."""
        end = self.now + max(seconds, 0.0)
        while self._due and self._due[0][0] <= end and not until():
            when, _, act = heapq.heappop(self._due)
            self.now = max(self.now, when)
            act()
        if not until():
            self.now = max(self.now, end)
        for what, limit in self.limits.items():
            if self.now > limit:
                raise BrokenPromise(f"{what} had not ended {self.now - limit:.1f} s after it must have")

    @contextmanager
    def running(self, process: str) -> Iterator[None]:
        """Inside the block another process runs."""
        before, self.process = self.process, process
        try:
            yield
        finally:
            self.process = before


class Kills:
    """Which processes end in the middle of a file operation, and those that have ended so."""

    def __init__(self, time: VirtualTime, folder: Path) -> None:
        self._time, self._folder = time, str(folder)
        self.left: dict[str, int] = {}  # operations that a process still does
        self.dead: set[str] = set()

    def count(self, path: Any) -> None:
        """A process is about to do something with the file at `path`. Raises KilledError if it is or was its last."""
        process = self._time.process
        if process in self.dead:
            raise KilledError
        if process not in self.left or not str(path).startswith(self._folder):
            return
        self.left[process] -= 1
        if self.left[process] < 0:
            del self.left[process]
            self.dead.add(process)
            name = Path(str(path)).name
            self._time.note(f"{process} is killed at {'a temporary file' if name.startswith('.tmp') else name}")
            raise KilledError

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Count operations of the system, and appending to the log, which may stop in the middle."""
        for name in OPERATIONS:
            patch.setattr(os, name, self._counted(name, getattr(os, name)))
        write = EventLog._write

        def torn(log: EventLog, content: bytes) -> None:
            try:
                self.count(log._path)
            except KilledError:
                if self._time.now % 1 < 0.5:  # at an odd moment, half of the line is there
                    with log._path.open("ab") as file:
                        file.write(content[: len(content) // 2])
                raise
            write(log, content)

        patch.setattr(EventLog, "_write", torn)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any, *arguments: Any, **named: Any) -> Any:
            if name == "fsync":
                return None  # what is lost with the power is looked at elsewhere
            if name != "open" or arguments[0] & os.O_CREAT:
                self.count(path)
            return function(path, *arguments, **named)

        return counted


class VirtualThread:
    """A thread of `MessageQueue` that pulls a reply: it ends at once, or later when the reply is slow to come."""

    def __init__(self, time: VirtualTime, delay: float, target: Callable[..., None], args: Any) -> None:
        self._time, self._delay, self._run = time, delay, lambda: target(*args)
        self._start = time.server_starts

    def start(self) -> None:
        if not self._delay:
            return self._run()
        self._time.after(self._delay, self._late)

    def _late(self) -> None:
        if self._start == self._time.server_starts:  # a thread ends with its process
            with self._time.running(SERVER):
                self._time.is_late = True
                self._run()
                self._time.is_late = False


def install(virtual: VirtualTime, patch: pytest.MonkeyPatch, pull_delay: Callable[[], float]) -> None:
    """Give all of the federation's modules, and Flower's messages, the virtual clocks and threads.

    Clocks are found by what they are, not by the names that a module has for them: whoever takes the time of day for a
    deadline gets a clock that jumps.
    """
    day = SimpleNamespace(now=lambda tz=None: real_datetime.datetime.fromtimestamp(virtual.wall(), tz))
    clocks = {id(time.monotonic): virtual.monotonic, id(time.time): virtual.wall, id(time.sleep): virtual.pass_time,
              id(real_datetime.datetime): day}  # fmt: skip
    modules = [module for name, module in sys.modules.items() if name.startswith("fedflat.federation")]
    for module in modules:
        for name, value in list(vars(module).items()):
            if id(value) in clocks:
                patch.setattr(module, name, clocks[id(value)])
    patch.setattr(flower_message, "now", lambda: day.now(real_datetime.UTC))

    def thread(target: Callable[..., None], args: Any, **_: Any) -> VirtualThread:
        return VirtualThread(virtual, pull_delay(), target, args)

    def wait(futures: list[Future[Any]], timeout: float) -> Any:
        virtual.pass_time(timeout, until=lambda: all(one.done() for one in futures))
        return SimpleNamespace(done={one for one in futures if one.done()})

    queue = sys.modules[message_queue.__name__]
    patch.setattr(queue, "threading", SimpleNamespace(Lock=threading.Lock, Thread=thread))
    patch.setattr(queue, "wait", wait)


@contextmanager
def passing_at_once() -> Iterator[None]:
    """Let time pass at once where the federation would wait inside the block.

    For grids in this process, which have every reply at once: what has not come by then never comes.
    """
    virtual = VirtualTime()
    virtual.offsets[SERVER] = time.time() - EPOCH  # it begins now
    with pytest.MonkeyPatch.context() as patch:
        install(virtual, patch, pull_delay=lambda: 0.0)
        patch.setattr(sys.modules["fedflat.federation.flower.transport"], "POLL_SECONDS", 0.1)  # of virtual time
        yield
