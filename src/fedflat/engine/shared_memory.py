"""Memory that several processes share, and pickles whose arrays and tensors are in this memory."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import cloudpickle
import torch
from torch import Tensor

from ..core.partial_model import sent_width
from ..rounds.device import ALIGNED
from ..rounds.executor import Executor
from .cohort import ChunkResult


class SharedMemory:
    """Anonymous memory of `size` bytes, which the system frees when the last process that maps it has ended.

    Pages that were never written take no memory. Unlike the shared memory of torch and of Python it is not in
    `/dev/shm`, which has 64 MB by default in a container.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        """Map new memory or, with an inherited file `descriptor`, the memory of another process."""
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)
        if descriptor is None:  # tensors in the memory need its pages, not the file
            weakref.finalize(self, os.close, self.descriptor)

    def tensor(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor whose elements begin at byte `start`."""
        return self._bytes[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)


class TensorAllocator:
    """Allocates tensors in shared memory, one after another; without memory it only counts the bytes.

    Two processes that allocate the same shapes in the same order get the same tensors.
    """

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self._memory = memory
        self.size = 0  # bytes allocated so far

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next tensor, at an aligned address."""
        start = self.size
        self.size += -(-prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        if self._memory is None:
            return torch.empty(shape, dtype=dtype, device="meta")
        return self._memory.tensor(start, shape, dtype)


def split_pickle(thing: Any) -> list[memoryview]:
    """Return the pickle of `thing`, then the memory of each array and tensor in it, which the pickle does not copy.

    Classes and functions that are defined in the running script or notebook are pickled with their code. If a part
    of `thing` cannot be pickled, the exception that its pickling raises is passed on.
    """
    main, arrays = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(main, protocol=5, buffer_callback=arrays.append).dump(thing)
    return [main.getbuffer(), *(array.raw() for array in arrays)]


def join_pickle(parts: Sequence[Any]) -> Any:
    """Return the object that `split_pickle` split; its arrays and tensors use the memory of `parts` without a copy."""
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 (from this program's own process)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # the library has no types
    """Pickles tensors as numpy pickles arrays: their elements stay outside the pickle."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and _is_array(thing):
            return torch.from_numpy, (thing.numpy(),)
        return super().reducer_override(thing)


def _is_array(x: Tensor) -> bool:
    """Tell whether `x` can become a numpy array and back without a change of its memory layout."""
    plain = x.layout is torch.strided and x.device.type == "cpu" and not (x.requires_grad or x.is_conj() or x.is_neg())
    return plain and x.numel() > 0 and x.is_contiguous() and x.dtype not in (torch.bfloat16, torch.complex32)


def _anonymous_file(size: int) -> int:
    """Return the descriptor of an anonymous file in memory or, if the system has none, on disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("fedflat")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


@dataclass(frozen=True)
class BufferLayout:
    """The layout of the shared memory, for workers."""

    parts: tuple[int, ...]  # bytes of each part of the pickled training setup
    rows: int  # most clients in a slot
    slots: int
    dtype: torch.dtype  # of all records
    size: int = 0  # bytes in all

    @classmethod
    def of(cls, executor: Executor, parts: Sequence[memoryview], rows: int, slots: int, dtype: torch.dtype) -> Self:
        """Return the layout for a training setup that was split into `parts`."""
        layout, allocate = cls(tuple(map(len, parts)), rows, slots, dtype), TensorAllocator()
        layout.setup_parts(allocate)
        SharedBuffers(executor, layout, allocate)
        return replace(layout, size=allocate.size)

    def setup_parts(self, allocate: TensorAllocator) -> list[Tensor]:
        """Return a tensor of bytes for each part of the training setup."""
        return [allocate((size,), torch.uint8) for size in self.parts]


class SharedBuffers:
    """The server's message, and slots: a slot has the records of a chunk's clients and room for the chunk's result."""

    def __init__(self, executor: Executor, layout: BufferLayout, allocate: TensorAllocator) -> None:
        method, dtype = executor.method, layout.dtype
        d = sent_width(method, executor.objective.space.d)

        def record(kind: type[Any], *rows: int) -> Any:
            widths = kind.widths(d, method)
            return kind(**{name: allocate((*rows, width), dtype) for name, width in widths.items()})

        def slot(rows: int) -> tuple[Any, ChunkResult]:
            before, received, after = (record(kind, rows) for kind in (method.client, method.mean, method.client))
            steps, factors, drifts, losses = (
                allocate(shape, dtype) for shape in ((rows, 1), (rows, 1), (rows,), (rows,))
            )
            return before, ChunkResult(received, after, steps, factors, drifts, losses)

        self.message = record(method.down)
        self._slots = [slot(layout.rows) for _ in range(layout.slots)]

    def slot(self, number: int, clients: int) -> tuple[Any, ChunkResult]:
        """Return the record (c, width) of a slot and the room for its result, the first `clients` rows of both."""
        record, result = self._slots[number]
        return record.map(lambda x: x[:clients]), result.map(lambda x: x[:clients])
