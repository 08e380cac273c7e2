"""Settings of native libraries in this process: rounding in Intel's MKL, and whether glibc keeps freed memory.

By default glibc returns large freed blocks to the system. Every step of a convolutional network then needs new pages:
it causes thousands of page faults, and the system clears a page for each of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import InputError

VARIABLE = "MKL_CBWR"  # "conditional bitwise reproducibility", read by Intel's library when it is called first
AUTO = 2  # MKL_CBWR_AUTO in mkl_types.h
TOO_LATE = -8  # MKL_CBWR_ERR_MODE_CHANGE_FAILURE


def fix_product_rounding() -> None:
    """Make the rounding of matrix products independent of memory addresses, in this process and in those it starts.

    Then a client's training has the same bits in every row of a stack; this costs no measurable time. Call this before
    any computation: Intel's library chooses its rounding at its first call. Nothing changes if the user has set
    $MKL_CBWR, or if the library was called before. Processes that are started later use the rounding of this process.
    """
    if VARIABLE not in os.environ and _set_in_library():
        os.environ[VARIABLE] = "AUTO"


def _set_in_library() -> bool:
    """Set the mode by a call of Intel's library; return False if the library refuses because it was called before.

    If torch is not imported, or does not export the function, return True: the library will read the environment
    variable. The documented function, mkl_cbwr_set, is not in torch's wheels; they export the function that it calls.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    try:
        library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", "libtorch_cpu.so")))
        return bool(library.mkl_serv_cbwr_set(AUTO) != TOO_LATE)
    except (OSError, AttributeError):
        return True


SWITCH = "FEDFLAT_MALLOC"  # the environment variable; "default" leaves the allocator unchanged
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt, from malloc.h
NEVER_TRIM = 2**31 - 1  # bytes; the maximum of mallopt's int
MAPPED_FROM = (2**30, 2**25)  # bytes from which a block is mapped separately; before glibc 2.35 at most 32 MiB


def tune_allocator(library: Callable[[], Any] = lambda: ctypes.CDLL(None)) -> bool:
    """Let glibc keep freed memory for the rest of this process; return whether it does.

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
