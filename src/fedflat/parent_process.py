"""Ends a process with the one that started it, from the beginning on: nothing is imported that takes time."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def end_with(parent: int) -> None:
    """Have the system kill this process as soon as the thread of `parent` that started it has ended, on Linux.

    Nothing in this process can delay it, as a call that holds Python's lock delays a thread that watches.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended just now
            os._exit(1)
