"""The types in which the numbers of samples are stored; a table in docs/own_data.md lists the conversions.

There are three kinds, because models see them differently: pixels (uint8) are scaled to [0, 1], integers
(int64) are tokens, and floats are unchanged. No part of a data set is converted to the kind of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError, first_line, printable, shortened
from ..core.number_kinds import NumberKind

Array = NDArray[Any]
ADVICE = {
    "c": "complex numbers; give real and imaginary part as two floats",
    "M": "dates; give numbers", "m": "times; give numbers", "V": "records with fields; give one array of numbers",
    "U": "texts; texts have to become token numbers first", "S": "bytes; give numbers", "T": "texts; give numbers",
    "O": "no numbers",
}  # fmt: skip


def sample_tensor(value: Any, what: str) -> Tensor:
    """Convert an array, a tensor, a table or nested lists to a tensor of uint8, int64, float32 or float64.

    The columns of a table (a DataFrame) are quantities: its integers and booleans become float64.
    Raises InputError, beginning with `what`, for values that are not numbers, or that fit into none of these types.
    """
    found = array_of(value, what)
    if is_table(value) and found.dtype.kind in "biu":
        found = found.astype(np.float64)
    return torch.from_numpy(stored(found, what))


def is_table(value: Any) -> bool:
    """Tell whether `value` has named columns, as a DataFrame of pandas or polars has."""
    return hasattr(value, "to_numpy") and hasattr(value, "columns")


def stored(found: Array, what: str) -> Array:
    """Convert an array to uint8, int64, float32 or float64; only floats wider than float64 are rounded.

    Raises InputError, beginning with `what`, for numbers that fit into none of these types, and for other values.
    """
    kind, size = found.dtype.kind, found.dtype.itemsize
    if kind in ADVICE:
        raise InputError(f"{what} has {ADVICE[kind]}")
    if kind == "u" and size == 8 and found.size and found.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} has {found.max()}, which is beyond int64")
    wanted = {"b": np.float32, "f": np.float32 if size <= 4 else np.float64, "i": np.int64, "u": np.int64}[kind]
    native = np.asarray(found, np.uint8 if found.dtype == np.uint8 else wanted, order="C")
    return native if native.flags.writeable else native.copy()  # torch has no tensors that cannot be written


def array_of(value: Any, what: str) -> Array:
    """Convert `value` to an array of any type. Raises InputError, beginning with `what`, if it cannot be converted."""
    try:
        if isinstance(value, Tensor):
            value = _of_tensor(value, what)
        elif hasattr(value, "to_numpy"):
            value = value.to_numpy()
        if hasattr(value, "toarray"):
            raise InputError(f"{what} is a sparse matrix; give x.toarray(), if that fits into memory")
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise InputError(f"{what} has masked values; fill them (x.filled) or leave their samples out")
        found = np.asarray(value)
        return found if found.dtype.kind != "O" else _of_objects(found, what)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{what} is no array of numbers: {shortened(first_line(error))}") from error


def kind_of(x: Tensor) -> NumberKind:
    """Return the kind of the numbers of stored samples."""
    return "floats" if x.is_floating_point() else "pixels" if x.dtype == torch.uint8 else "tokens"


def alike(parts: Mapping[str, Tensor]) -> list[Tensor]:
    """Convert the samples of several parts to one type; floats of two widths become float64, which changes no value.

    Raises InputError, naming both parts, if parts have different kinds of numbers, which models see differently.
    """
    first = next(iter(parts))
    for name, x in parts.items():
        check_kind(name, x, first, parts[first])
    wide = any(x.dtype == torch.float64 for x in parts.values())
    return [x.double() if wide else x for x in parts.values()]


def check_kind(name: str, x: Tensor, other: str, y: Tensor) -> None:
    """Raise InputError, naming both parts, unless the samples `x` and `y` have the same kind of numbers."""
    if kind_of(x) != kind_of(y):
        raise InputError(f"data: {name} has {kind_of(x)}, {other} has {kind_of(y)}; uint8 is pixels, scaled to [0, 1], "
                         "other whole numbers are tokens: give all the same type")  # fmt: skip


def _of_tensor(value: Tensor, what: str) -> Array:
    """Convert a tensor to an array on the host. Raises InputError, beginning with `what`, for a sparse tensor."""
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise InputError(f"{what} is a sparse, nested or quantized tensor; give x.to_dense() or x.dequantize()")
    value = value.detach().cpu().resolve_conj().resolve_neg()
    found: Array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return found


def _of_objects(found: Array, what: str) -> Array:
    """Convert an array of objects to numbers. Raises InputError, naming the sample, for an object that is no number."""
    flat = found.ravel().tolist()
    for place, value in enumerate(flat):
        if not isinstance(value, Number | np.bool_):
            row = place // (found.size // len(found)) if found.ndim else 0
            raise InputError(f"{what} has {_shown(value)} in sample {row}, expected numbers")
    return np.asarray(flat).reshape(found.shape)


def _shown(value: Any) -> str:
    shown = printable(shortened(repr(value), 40))
    return f"the text {shown}" if isinstance(value, str) else f"{shown} of type {type(value).__name__}"
