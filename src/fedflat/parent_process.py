"""Ends a process when its parent ends. Imports nothing that takes time, so that a new process is covered at once."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def end_with(parent: int) -> None:
    """Have the system kill this process as soon as the thread of `parent` that started it has ended, on Linux.

    Nothing in this process can delay this. A thread that watches the parent would be delayed by a call that holds
    Python's lock.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended just now
            os._exit(1)
