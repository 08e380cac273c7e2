"""A worker process, seen from its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from ..shared_memory import SharedMemory
from .board import Assignment, Outline


class Process:
    """A process that has been started; `channel` is the way to it and back."""

    def __init__(self, memory: SharedMemory, outline: Outline) -> None:
        """Start it. It says so, with an `Answer`, when it is ready or cannot be."""
        mine, its = socket.socketpair()
        with its:
            # Not multiprocessing: its new processes run the user's script again, which must then be guarded.
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter and this package)
                [sys.executable, "-P", "-m", f"{__package__}.worker", str(its.fileno()), str(memory.handle)],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(), memory.handle),
                process_group=0,  # so that Ctrl-C in a terminal reaches the parent alone
                env=os.environ | {"PYTHONPATH": _search_path(), "OMP_NUM_THREADS": "1"},
            )
        self.channel = Connection(mine.detach())
        self.tell(outline)

    @property
    def number(self) -> int:
        """The system's number for it."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def tell(self, what: Outline | Assignment) -> None:
        """Send it something; if it has ended, that will be heard from the channel."""
        with suppress(OSError):
            self.channel.send(what)

    def end(self, patience: float = 0.0) -> str:
        """End it, if it does not end by itself within `patience` seconds; how it ended, in words."""
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._process.kill()  # it holds nothing that is worth a farewell
        code = self._process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _search_path() -> str:
    """Where this process finds modules, for another one to find the same."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)
