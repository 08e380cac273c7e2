"""A worker process: the loop that runs its parent's tasks until the parent ends, and the handle for the parent."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from time import monotonic
from types import MappingProxyType
from typing import Any

import torch

from ...core.native_libraries import tune_allocator
from . import start

Report = Callable[[Any], None]  # sends an event to the parent
RunTask = Callable[[Any, Report], Any]  # runs a task that reports events; returns the result for the parent
SUSPENDED = 5.0  # seconds for which a process may be suspended, e.g. by a debugger
GRACE = 5.0  # seconds for a process to exit after it closed its connection


@dataclass(frozen=True)
class Event:
    """A report from a running task."""

    content: Any


@dataclass(frozen=True)
class Outcome:
    """The result of a task or of the setup."""

    result: Any = None
    error: Exception | None = None


def serve(connection: Connection) -> None:
    """Set up this process, then run one task after another. Raises EOFError or OSError when the parent has ended."""
    try:
        setup: Callable[[], RunTask] = connection.recv()
        run = setup()
    except Exception as error:
        return connection.send(Outcome(error=picklable(error)))
    connection.send(Outcome())
    while True:
        task = connection.recv()
        try:
            outcome = Outcome(run(task, lambda event: connection.send(Event(event))))
        except Exception as error:
            outcome = Outcome(error=picklable(error))
        connection.send(outcome)


def picklable(error: Exception) -> Exception:
    """Return `error` with its traceback as a note, or a RuntimeError with its text if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (just made)
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _exit_with_parent(descriptor: int) -> None:
    """Exit when the other end of the connection is closed; the system closes it when the parent ends.

    On a system without `poll` this process ends after its task, when it can neither send nor receive.
    """
    if not hasattr(select, "poll"):
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP)  # Linux always reports it; other systems need not
    poll.poll()
    os._exit(1)


def main() -> None:
    """Serve the parent that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this process ends
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    threading.Thread(target=_exit_with_parent, args=(descriptor,), daemon=True).start()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tune_allocator()
    with Connection(descriptor) as connection, suppress(EOFError, OSError):
        serve(connection)


class WorkerProcess:
    """A process that runs tasks, one at a time. It ends when its parent ends."""

    def __init__(
        self,
        setup: Callable[[], RunTask],
        files: Sequence[int] = (),
        threads: int = 1,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start the process.

        setup: prepares the process and returns the function that runs a task; it is pickled.
        files: the descriptors of open files that the process inherits under the same numbers.
        threads: the number of threads that torch and its libraries use.
        variables: further environment variables of the process.
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
                env={**os.environ, **variables, "PYTHONPATH": search_path, "OMP_NUM_THREADS": str(threads)},
            )
        self.pid = self._process.pid
        self.connection = Connection(ours.detach())
        self._suspended_since: float | None = None
        self._was_suspended = False  # killed because it was suspended too long
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
        """Kill the process, unless it exits within `grace` seconds; return how it ended, in words."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self._process.kill()
        code = self._process.wait()
        if self._was_suspended:
            return f"was stopped for more than {SUSPENDED:g} seconds, and so was ended"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _is_suspended(pid: int) -> bool:
    """Tell whether a child process is suspended; False on systems that cannot tell, such as macOS before Python 3.13.

    WNOWAIT leaves its exit status to the caller that waits for it.
    """
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False
