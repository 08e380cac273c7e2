"""A process of our own, seen from its parent and from within; it ends with the parent, however that ends."""

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
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

STOPPED = 5.0  # seconds for which a process may be stopped; somebody may only have looked at it


class Child:
    """A process that has been started; `channel` is the way to it and back."""

    def __init__(self, module: str, handles: Sequence[int] = (), threads: int = 1) -> None:
        """Start `python -m MODULE CHANNEL HANDLE...`: numbers of open files that it inherits.

        threads: what torch and its libraries start with in it.
        """
        mine, its = socket.socketpair()
        with its:
            inherited = (its.fileno(), *handles)
            # Not multiprocessing: its new processes run the user's script again, which must then be guarded.
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter and this package)
                [sys.executable, "-P", "-m", module, *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                process_group=0,  # so that Ctrl-C in a terminal reaches the parent alone
                env=os.environ | {"PYTHONPATH": _search_path(), "OMP_NUM_THREADS": str(threads)},
            )
        self.channel = Connection(mine.detach())
        self._stopped_since: float | None = None
        self._given_up = False  # it was stopped for too long

    @property
    def number(self) -> int:
        """The system's number for it."""
        return self._process.pid

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def tell(self, what: Any) -> None:
        """Send it something; if it has ended, that will be heard from the channel."""
        with suppress(OSError):
            self.channel.send(what)

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        self._process.send_signal(number)

    def end_if_stopped(self) -> None:
        """End it if it has been stopped (SIGSTOP) for `STOPPED` seconds: it would never answer. To be asked often."""
        now = monotonic()
        self._stopped_since = (self._stopped_since or now) if _is_stopped(self._process.pid) else None
        if self._stopped_since is not None and now - self._stopped_since > STOPPED:
            self._given_up = True
            self._process.kill()

    def end(self, patience: float = 0.0) -> str:
        """End it, if it does not end by itself within `patience` seconds; how it ended, in words."""
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._process.kill()  # it holds nothing that is worth a farewell
        code = self._process.wait()
        if self._given_up:
            return f"was stopped for more than {STOPPED:g} seconds, and so was ended"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _is_stopped(number: int) -> bool:
    """Whether a child of this process is stopped; nothing is taken from whoever waits for its end."""
    try:
        return os.waitid(os.P_PID, number, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False


def parents_channel() -> Connection:
    """Within a child: the way to the parent. From now on this process ends when the parent does."""
    channel = int(sys.argv[1])
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    return Connection(channel)


def sendable(error: Exception) -> Exception:
    """`error` with where it happened as a note; one that cannot be sent as a RuntimeError that says the same."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (just made)
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _search_path() -> str:
    """Where this process finds modules, for another one to find the same."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def _end_with_parent(channel: int) -> None:
    """Wait until the other end of the channel is closed, as the system does when the parent ends, however it ends."""
    watched = select.poll()
    watched.register(channel, 0)  # nothing but the hanging up, which is always told
    watched.poll()
    os._exit(1)
