"""The memory that the training workers of a simulation share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...rounds.executor import Executor
from ..cohort import ChunkResult
from ..shared_memory import TensorAllocator


@dataclass(frozen=True)
class BufferLayout:
    """What a worker needs to find everything in the shared memory."""

    parts: tuple[int, ...]  # bytes of each part of the pickled training setup
    rows: int  # the most clients in a slot
    slots: int
    dtype: torch.dtype  # of all records
    size: int = 0  # bytes in all

    @classmethod
    def of(cls, executor: Executor, parts: Sequence[memoryview], rows: int, slots: int, dtype: torch.dtype) -> Self:
        """The layout for a training setup that was split into `parts`."""
        layout, allocate = cls(tuple(map(len, parts)), rows, slots, dtype), TensorAllocator()
        layout.setup_parts(allocate)
        SharedBuffers(executor, layout, allocate)
        return replace(layout, size=allocate.size)

    def setup_parts(self, allocate: TensorAllocator) -> list[Tensor]:
        """The bytes of the parts of the training setup."""
        return [allocate((size,), torch.uint8) for size in self.parts]


@dataclass(frozen=True)
class Slot:
    """The records of a chunk's clients, and room for the result of their training."""

    record: Any
    result: ChunkResult


class SharedBuffers:
    """The server's message, and slots through which chunks of clients pass to a worker and back."""

    def __init__(self, executor: Executor, layout: BufferLayout, allocate: TensorAllocator) -> None:
        method, d, dtype = executor.method, executor.objective.space.d, layout.dtype

        def record(kind: type[Any], *rows: int) -> Any:
            widths = kind.widths(d, method)
            return kind(**{name: allocate((*rows, width), dtype) for name, width in widths.items()})

        def slot(rows: int) -> Slot:
            before, received, after = (record(kind, rows) for kind in (method.client, method.mean, method.client))
            steps, factors, drifts, losses = (
                allocate(shape, dtype) for shape in ((rows, 1), (rows, 1), (rows,), (rows,))
            )
            return Slot(before, ChunkResult(received, after, steps, factors, drifts, losses))

        self.message = record(method.down)
        self._slots = [slot(layout.rows) for _ in range(layout.slots)]

    def slot(self, number: int, clients: int) -> Slot:
        """The first rows of a slot, one for each client."""
        slot = self._slots[number]
        return Slot(slot.record.map(lambda x: x[:clients]), slot.result.map(lambda x: x[:clients]))
