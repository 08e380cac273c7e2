"""What a parent and its workers share: everything that training takes, and the slots that a round passes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.method import Context
from ...data.federated import Index
from ...rounds.executor import Executor
from ..cohort import ChunkResult
from ..shared_memory import Cutter


@dataclass(frozen=True)
class Outline:
    """All that a worker must be told to find its way in the shared memory."""

    equipment: tuple[int, ...]  # bytes of each part of what training takes
    rows: int  # the most clients in a slot
    slots: int
    dtype: torch.dtype  # of all records
    size: int = 0  # bytes in all

    @classmethod
    def of(cls, executor: Executor, parts: Sequence[memoryview], rows: int, slots: int, dtype: torch.dtype) -> Self:
        """The outline for equipment that was taken apart into `parts`."""
        outline, count = cls(tuple(map(len, parts)), rows, slots, dtype), Cutter()
        outline.shelves(count)
        Board(executor, outline, count)
        return replace(outline, size=count.end)

    def shelves(self, cut: Cutter) -> list[Tensor]:
        """Where the parts of the equipment lie, as bytes."""
        return [cut((size,), torch.uint8) for size in self.equipment]


@dataclass(frozen=True)
class Equipment:
    """What training takes, the same in every round."""

    executor: Executor
    is_weight: Tensor | None
    layers: tuple[slice, ...]  # this and the one above complete a round's `Context`
    # Settings of torch that a model's results may depend on: those of the process that makes this.
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    matmul_precision: str = field(default_factory=torch.get_float32_matmul_precision)


@dataclass(frozen=True)
class Slot:
    """Room for some clients at a time."""

    record: Any  # what they kept until now
    part: ChunkResult  # what their training gives


@dataclass(frozen=True)
class Assignment:
    """Work for one worker: the clients whose records lie in a slot."""

    slot: int
    clients: Index
    ctx: Context  # without what is in the equipment


@dataclass(frozen=True)
class Answer:
    """What a worker says when its assignment is done and the slot filled, or when it has got ready."""

    gradients: int = 0  # minibatch gradients taken
    error: Exception | None = None


class Board:
    """The server's message, and slots through which clients' records come to a worker and results come back."""

    def __init__(self, executor: Executor, outline: Outline, cut: Cutter) -> None:
        self._method, self._d = executor.method, executor.objective.space.d
        self._dtype, self._cut = outline.dtype, cut
        self.down = self._record(self._method.down)
        self._slots = [self._slot(outline.rows) for _ in range(outline.slots)]

    def slot(self, number: int, clients: int) -> Slot:
        """A slot for so many clients."""
        slot = self._slots[number]
        return Slot(slot.record.map(lambda x: x[:clients]), slot.part.map(lambda x: x[:clients]))

    def _slot(self, rows: int) -> Slot:
        record, received = (self._record(kind, rows) for kind in (self._method.client, self._method.mean))
        steps, drifts = self._cut((rows, 1), self._dtype), self._cut((rows,), self._dtype)
        return Slot(record, ChunkResult(received, self._record(self._method.client, rows), steps, drifts))

    def _record(self, kind: type[Any], *rows: int) -> Any:
        widths = kind.widths(self._d, self._method)
        return kind(**{name: self._cut((*rows, width), self._dtype) for name, width in widths.items()})
