"""Records as bytes, and back again for a reader who does not trust the sender."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core.records import Record

KINDS = {torch.float32: "<f4", torch.float64: "<f8"}  # as numpy writes them: little-endian
R = TypeVar("R", bound=Record)
SHOWN = 60  # characters of what was sent, in a message about it


class RefusedError(ValueError):
    """What was sent is not what was asked for; the message says in what."""


@dataclass(frozen=True)
class Packed:
    """A tensor on its way: numbers one after another, without a header that could say something else."""

    kind: str  # of the numbers, as in `KINDS`
    shape: tuple[int, ...]
    data: bytes


def pack(record: Record) -> dict[str, Packed]:
    """The fields of a record (width,), by name; those that are not there for this method, of width 0, are not sent."""
    return {name: _packed(x) for name, x in record.tensors().items() if x.numel()}


def _packed(x: Tensor) -> Packed:
    numbers = x.detach().cpu().contiguous().numpy()
    kind = KINDS[x.dtype]
    return Packed(kind, tuple(x.shape), numbers.astype(kind, copy=False).tobytes())


def unpack(record: type[R], widths: Mapping[str, int], dtype: torch.dtype, packed: Mapping[str, Packed]) -> R:
    """The record (width,) that `pack` was given, in memory of its own.

    widths: numbers of each field, see `Record.widths`. Raises RefusedError, naming the field, unless there are exactly
    these fields, each with numbers of this kind, as many as expected in as many bytes, all finite. Nothing is
    interpreted, and no memory is taken, before that is known of a field.
    """
    expected = {name for name, width in widths.items() if width}
    if packed.keys() != expected:
        raise RefusedError(f"the fields are {_told(sorted(map(str, packed)))}, expected {_told(sorted(expected))}")
    empty = torch.empty(0, dtype=dtype)
    return record(**{n: _unpacked(n, width, dtype, packed[n]) if width else empty for n, width in widths.items()})


def _unpacked(name: str, width: int, dtype: torch.dtype, packed: Packed) -> Tensor:
    kind = KINDS[dtype]
    expected = {"kind": kind, "shape": (width,), "bytes": width * dtype.itemsize}
    found = {"kind": packed.kind, "shape": tuple(packed.shape), "bytes": len(packed.data)}
    for what, value in expected.items():
        if found[what] != value:
            raise RefusedError(f"{name}: {what} is {_told(found[what])}, expected {value}")
    x = torch.from_numpy(np.frombuffer(packed.data, kind).astype(kind[1:]))
    broken = int((~torch.isfinite(x)).sum())
    if broken:
        raise RefusedError(f"{name}: {broken:,} of {width:,} numbers are NaN or infinite")
    return x


def _told(value: object) -> str:
    """What was sent, cut short: a message shall not grow with it."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
