"""Stopping between rounds: the first Ctrl-C lets the current round finish, a second Ctrl-C stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
ENDING_SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]  # Windows lacks the last two


class Interrupted(Exception):  # noqa: N818 (not an error: the user asked for it)
    """A signal has stopped the work; everything up to the last complete round is on disk."""

    def __init__(self, signal_number: int, where: str) -> None:
        super().__init__(f"stopped; {where}")
        self.exit_code = 128 + signal_number


class StopRequest:
    """A signal handler that keeps the number of the first signal; the second signal raises KeyboardInterrupt."""

    signal_number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def stop_between_rounds() -> Iterator[StopRequest]:
    """Yield a `StopRequest` that handles SIGINT and SIGTERM in the block, so that they do not interrupt a round."""
    request = StopRequest()
    with signals_handled_by(request):
        yield request


@contextmanager
def signals_handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call `handler` inside the block; change nothing in a thread that is not the main one."""
    with signals_restored():
        if threading.current_thread() is threading.main_thread():  # only the main thread may handle signals
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, handler)
        yield


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the handlers of `ENDING_SIGNALS` after the block, because code in it, such as torchrun, replaces them."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:  # None: not set from Python
                signal.signal(number, handler)
