"""Settings of glibc's allocator that keep the memory freed by a training step for the next step.

By default glibc returns large freed blocks to the system, so that every step of a convolutional network needs the same
pages again: thousands of page faults, and for each one the system clears a page.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from ctypes import CDLL
from typing import Any

from ..core.errors import InputError

SWITCH = "FEDFLAT_MALLOC"  # the environment variable; "default" leaves the allocator unchanged
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
NEVER_TRIM = 2**31 - 1  # bytes; the maximum of mallopt's int
MAPPED_FROM = (2**30, 2**25)  # bytes from which a block is mapped separately; before glibc 2.35 at most 32 MiB


def tune_allocator(library: Callable[[], Any] = lambda: CDLL(None)) -> bool:
    """Let glibc keep freed memory for the rest of this process; returns whether it does.

    The peak of memory stays the same, and a second call changes nothing. Nothing happens if the C library of this
    process, which `library` loads, is not glibc, or if $FEDFLAT_MALLOC is "default". Raises InputError for any other
    value of $FEDFLAT_MALLOC.
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
