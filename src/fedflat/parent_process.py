"""A process that ends with its parent. Slow imports are avoided, so that a new process can call `end_with` at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def end_with(parent: int) -> None:
    """Have the system kill this process as soon as the thread of `parent` that started it has ended, on Linux.

    Nothing in this process can delay its end. A thread that watches the parent could be delayed by a call that holds
    Python's global interpreter lock.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended just now
            os._exit(1)
