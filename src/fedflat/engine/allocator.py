"""Lets glibc keep the memory that a training step has freed for the next step.

By default glibc gives large blocks back to the system when they are freed, so that every step of a convolutional
network needs the same pages again: thousands of page faults, for each of which the system clears a page.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import CDLL
from typing import Any

from ..core.errors import InputError

SWITCH = "FEDFLAT_MALLOC"  # the environment variable; "default" leaves the allocator as it is
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
NEVER_TRIM = 2**31 - 1  # bytes; the most that mallopt's int can say
MAPPED_FROM = (2**30, 2**25)  # bytes from which a block is mapped by itself; glibc before 2.35 takes at most 32 MiB


def tune_allocator(library: Callable[[], Any] = lambda: CDLL(None)) -> bool:
    """Let glibc keep freed memory for the rest of this process; returns whether it does so now.

    This needs no memory beyond the peak that the process has anyway. A second call changes nothing. Nothing happens
    where the C library of this process, which `library` gives, is another one, or where $FEDFLAT_MALLOC is "default".
    Raises InputError if $FEDFLAT_MALLOC is anything else.
    """
    value = os.environ.get(SWITCH, "")
    if value not in ("", "default"):
        raise InputError(f"{SWITCH} must be 'default' or not set, got {value!r}")
    if value == "default":
        return False
    try:
        mallopt = library().mallopt
    except (OSError, TypeError, AttributeError):  # no glibc: musl and macOS lack the function, Windows the library
        return False
    # The order matters: once trimming is set, a refused threshold of mapping would stay at 128 KiB.
    mapped = any(mallopt(M_MMAP_THRESHOLD, size) for size in MAPPED_FROM)
    return mapped and bool(mallopt(M_TRIM_THRESHOLD, NEVER_TRIM))
