"""The rounding of matrix products by Intel's library."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

VARIABLE = "MKL_CBWR"  # "conditional bitwise reproducibility", read by Intel's library when it is called first
AUTO = 2  # MKL_CBWR_AUTO in mkl_types.h
TOO_LATE = -8  # MKL_CBWR_ERR_MODE_CHANGE_FAILURE


def fix_product_rounding() -> None:
    """Round matrix products alike wherever in memory a matrix begins, in this process and in those that it starts.

    Then a client's training has the same bits in every row of a stack; measured, it costs no time. Call this before any
    computation: Intel's library chooses its rounding at its first call. Nothing changes if the user has set $MKL_CBWR,
    or if the library was called before; processes that are started later then round as this one does.
    """
    if VARIABLE not in os.environ and _set_in_library():
        os.environ[VARIABLE] = "AUTO"


def _set_in_library() -> bool:
    """Set the mode by a call of Intel's library; False if the library refuses, because it was called before.

    If torch does not export the function, the library will read the variable. The documented function, mkl_cbwr_set,
    is not in torch's wheels; they export the function that it calls.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    try:
        library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", "libtorch_cpu.so")))
        return bool(library.mkl_serv_cbwr_set(AUTO) != TOO_LATE)
    except (OSError, AttributeError):
        return True
