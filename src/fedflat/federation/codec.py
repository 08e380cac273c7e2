"""Converts records to bytes, and back for a receiver that does not trust the sender.

It is written by hand because the usual formats (npy, safetensors, pickle) begin with a header by the sender, which the
receiver would have to believe. Here the receiver knows dtype and shape beforehand and only compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core.errors import printable
from ..core.records import Record

DTYPES = {torch.float32: "<f4", torch.float64: "<f8"}  # in numpy's notation: little-endian
QUOTED = 60  # characters of a received value that an error message repeats
R = TypeVar("R", bound=Record)


class RefusedError(ValueError):
    """A received message is not what was expected; the error names the field."""


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as bytes: its numbers one after another, without a header."""

    dtype: str  # one of `DTYPES`
    shape: tuple[int, ...]
    data: bytes


def pack(record: Record) -> dict[str, PackedTensor]:
    """Convert the fields of a record (width,). Fields of width 0, which the method does not use, are left out."""
    packed = {}
    for name, x in record.tensors().items():
        if x.numel():
            dtype = DTYPES[x.dtype]
            numbers = x.detach().cpu().contiguous().numpy().astype(dtype, copy=False)
            packed[name] = PackedTensor(dtype, tuple(x.shape), numbers.tobytes())
    return packed


def unpack(record: type[R], widths: Mapping[str, int], dtype: torch.dtype, packed: Mapping[str, PackedTensor]) -> R:
    """The record (width,) that was given to `pack`, in newly allocated memory.

    widths: of each field, see `Record.widths`. Raises RefusedError, naming the field, unless `packed` has exactly the
    fields whose width is not 0, and each one has the expected dtype, shape and number of bytes and only finite numbers.
    Memory for a field is allocated only after these comparisons.
    """
    expected = {name for name, width in widths.items() if width}
    if packed.keys() != expected:
        raise RefusedError(f"the fields are {quoted(sorted(map(str, packed)))}, expected {quoted(sorted(expected))}")
    empty = torch.empty(0, dtype=dtype)
    return record(**{n: _unpack_tensor(n, width, dtype, packed[n]) if width else empty for n, width in widths.items()})


def _unpack_tensor(name: str, width: int, dtype: torch.dtype, packed: PackedTensor) -> Tensor:
    expected = {"dtype": DTYPES[dtype], "shape": (width,), "bytes": width * dtype.itemsize}
    found = {"dtype": packed.dtype, "shape": tuple(packed.shape), "bytes": len(packed.data)}
    for what, value in expected.items():
        if found[what] != value:
            raise RefusedError(f"{name}: {what} is {quoted(found[what])}, expected {value}")
    # Copied: what was received is read-only, and may not be aligned.
    x = torch.from_numpy(np.frombuffer(packed.data, DTYPES[dtype]).astype(DTYPES[dtype][1:]))
    broken = int((~torch.isfinite(x)).sum())
    if broken:
        raise RefusedError(f"{name}: {broken:,} of {width:,} numbers are NaN or infinite")
    return x


def quoted(value: object) -> str:
    """The repr of a received value for an error message: on one line, and at most `QUOTED` characters."""
    return cut(repr(value), QUOTED)


def cut(text: str, limit: int) -> str:
    """Received text for an error message: on one line, and at most `limit` characters, however long it is."""
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else f"{text[:limit]}..."
