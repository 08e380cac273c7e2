"""The bytes of a compressed vector: written by a client, read and checked by the server.

top-k: the k numbers in the order of their places, then their places, as a bit for each of the d entries or as 32-bit
integers. quantise: the largest magnitude s, then for each bit, from the lowest, the bits of all entries, each of which
is its multiple of s / L, plus L. The length depends on d and the settings alone, and numbers are little-endian.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.compression import Compression

PLACE = np.dtype("<u4")
CODE = np.uint16  # has room for `Compression.bits`


def encoded(x: Tensor, how: Compression) -> bytes:
    """Return the bytes of a vector (width,) that `how` has compressed."""
    if how.kind == "quantise":
        multiples, scale = how.to_levels(x)
        codes = (multiples + how.levels).numpy().astype(CODE)
        planes = [np.packbits((codes >> bit) & CODE(1)).tobytes() for bit in range(how.bits or 0)]
        return b"".join([_plain(scale), *planes])
    mask = how.largest(x)
    places = np.packbits(mask.numpy()) if how.has_bitmap(len(x)) else np.flatnonzero(mask.numpy()).astype(PLACE)
    return _plain(x[mask]) + places.tobytes()


def decoded(data: bytes, how: Compression, width: int, dtype: torch.dtype) -> Tensor:
    """Return the vector (width,) that was given to `encoded`, from as many bytes as this has.

    Raises ValueError, with the reason, if the bytes are no such vector.
    """
    if how.kind == "quantise":
        scale, codes = _numbers(data[: dtype.itemsize], dtype), _codes(data[dtype.itemsize :], width)
        if not (0 <= float(scale) < np.inf and codes.max() <= 2 * how.levels):
            raise ValueError("the largest magnitude or a multiple of it is out of range")
        return how.from_levels(torch.from_numpy(codes).to(dtype) - how.levels, scale)
    k = how.kept(width)
    numbers, places = _numbers(data[: k * dtype.itemsize], dtype), data[k * dtype.itemsize :]
    found = _of_bitmap(places, width) if how.has_bitmap(width) else np.frombuffer(places, PLACE).astype(np.int64)
    if len(found) != k or found[-1] >= width or not (np.diff(found) > 0).all():
        raise ValueError(f"the places are not {k:,} rising ones of {width:,}")
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError("numbers are NaN or infinite")
    return torch.zeros(width, dtype=dtype).index_copy(0, torch.from_numpy(found), numbers)


def _plain(x: Tensor) -> bytes:
    numbers = x.numpy()
    return numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).tobytes()


def _numbers(data: bytes, dtype: torch.dtype) -> Tensor:
    # Copied, because the received bytes are read-only and may not be aligned.
    native = torch.empty(0, dtype=dtype).numpy().dtype
    return torch.from_numpy(np.frombuffer(data, native.newbyteorder("<")).astype(native))


def _bits(data: bytes, width: int) -> NDArray[np.uint8]:
    """Return the first `width` bits of `data`. Raises ValueError unless the others, which fill a byte, are 0."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    if bits[width:].any():
        raise ValueError("bits beyond the last entry are not 0")
    return bits[:width]


def _of_bitmap(data: bytes, width: int) -> NDArray[Any]:
    return np.flatnonzero(_bits(data, width))


def _codes(data: bytes, width: int) -> NDArray[np.int32]:
    """Return the numbers (width,) whose bits are the planes in `data`."""
    size = -(-width // 8)
    planes = (_bits(data[start : start + size], width) for start in range(0, len(data), size))
    shifted = (plane.astype(np.int32) << bit for bit, plane in enumerate(planes))
    return reduce(np.bitwise_or, shifted)
