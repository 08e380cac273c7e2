"""A worker process as its parent sees it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

from . import start
from .worker import RunTask

SUSPENDED = 5.0  # seconds for which a process may be suspended; a user may only have looked at it
GRACE = 5.0  # seconds for a process to exit after it closed its connection


class WorkerProcess:
    """A process that runs tasks, one at a time. It ends when its parent ends."""

    def __init__(self, setup: Callable[[], RunTask], files: Sequence[int] = (), threads: int = 1) -> None:
        """Start the process.

        setup: prepares the process and returns the function that runs a task; it is pickled.
        files: the descriptors of open files that the process inherits under the same numbers.
        threads: the number of threads that torch and its libraries use.
        """
        search_path = os.pathsep.join(path or os.getcwd() for path in sys.path)  # the same modules as in this process
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        ours, theirs = socket.socketpair()
        with theirs:
            # Not multiprocessing: it runs the user's script again in each new process, unless the script is guarded.
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter and this package)
                [sys.executable, "-P", start.__file__, str(theirs.fileno()), str(parent)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *files),
                process_group=0,  # so that Ctrl-C in a terminal reaches the parent only
                env=os.environ | {"PYTHONPATH": search_path, "OMP_NUM_THREADS": str(threads)},
            )
        self.pid = self._process.pid
        self.connection = Connection(ours.detach())
        self._suspended_since: float | None = None
        self._was_suspended = False  # for so long that it was killed
        self.send(setup)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def send(self, message: Any) -> None:
        """Send a message. If the process has ended, the next `recv` on the connection raises EOFError."""
        with suppress(OSError):
            self.connection.send(message)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def kill_if_suspended(self) -> None:
        """Kill the process if it was suspended (SIGSTOP) for `SUSPENDED` seconds: it would never answer.

        The caller has to call this about once a second.
        """
        now = monotonic()
        self._suspended_since = (self._suspended_since or now) if _is_suspended(self.pid) else None
        if self._suspended_since is not None and now - self._suspended_since > SUSPENDED:
            self._was_suspended = True
            self._process.kill()

    def end(self, grace: float = 0.0) -> str:
        """Kill the process, unless it exits within `grace` seconds; returns how it ended, in words."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self._process.kill()
        code = self._process.wait()
        if self._was_suspended:
            return f"was stopped for more than {SUSPENDED:g} seconds, and so was ended"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _is_suspended(pid: int) -> bool:
    """Whether a child process is suspended. WNOWAIT: its exit status stays available for whoever waits for it."""
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False
