"""Memory that several processes map, and objects whose numbers lie in it once for all of them."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Sequence
from math import prod
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..rounds.memory_layout import ALIGNED


class SharedMemory:
    """`size` bytes without a name: nothing is left of them when the last process that maps them is gone.

    Bytes that nobody has written take no room. Not in `/dev/shm`, where torch's and Python's shared memory lies: in a
    container that has 64 MB unless it is given more.
    """

    def __init__(self, size: int, handle: int | None = None) -> None:
        """New memory; or that of another process, from which `handle`, the number of an open file, was inherited."""
        self.handle = _anonymous_file(size) if handle is None else handle
        self._bytes = torch.frombuffer(mmap.mmap(self.handle, size), dtype=torch.uint8)
        weakref.finalize(self, os.close, self.handle)  # the bytes themselves live as long as tensors that lie in them

    def tensor(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor whose numbers begin at byte `start`."""
        return self._bytes[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)


class Cutter:
    """Cuts tensors out of shared memory, one after another; without memory it only finds out how much is needed."""

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self._memory = memory
        self.end = 0  # bytes cut so far

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next tensor, aligned."""
        start = self.end
        self.end += -(-prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        if self._memory is None:
            return torch.empty(shape, dtype=dtype, device="meta")
        return self._memory.tensor(start, shape, dtype)


def taken_apart(thing: Any) -> list[memoryview]:
    """The bytes from which another process can build `thing`: how, then the numbers of its arrays and tensors.

    Numbers are not copied. Raises TypeError, AttributeError or PicklingError if no other process could build it.
    """
    plan, arrays = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(plan, protocol=5, buffer_callback=arrays.append).dump(thing)
    return [plan.getbuffer(), *(array.raw() for array in arrays)]


def put_together(parts: Sequence[Any]) -> Any:
    """What was taken apart; its arrays and tensors lie where `parts` do, and nothing is copied."""
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 (from this program's own process)


class _Pickler(pickle.Pickler):
    """Leaves the numbers of tensors beside the pickle, as numpy does with those of arrays."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and _is_array(thing):
            return torch.from_numpy, (thing.numpy(),)
        if isinstance(thing, type | FunctionType) and thing.__module__ == "__main__":
            # Found here, and not in the other process, whose main module is another one.
            raise pickle.PicklingError(f"{thing.__qualname__} is defined in the script or notebook that runs")
        return NotImplemented


def _is_array(x: Tensor) -> bool:
    """Whether numpy can hold `x`, and would put it together in the same layout."""
    plain = x.layout is torch.strided and x.device.type == "cpu" and not (x.requires_grad or x.is_conj() or x.is_neg())
    return plain and x.numel() > 0 and x.is_contiguous() and x.dtype not in (torch.bfloat16, torch.complex32)


def _anonymous_file(size: int) -> int:
    """An open file of `size` bytes in memory; where the system has none such, one on disk without a name."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("fedflat")
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle
