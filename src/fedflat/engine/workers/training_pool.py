"""Trains the chunks of a cohort in worker processes, which share the memory of data, records and results."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.method import Context
from ...data.types import Index
from ...rounds.executor import Executor
from ..cohort import ChunkInput, ChunkResult, train_chunk
from ..shared_memory import SharedMemory, TensorAllocator, join_pickle, split_pickle
from .process import WorkerProcess
from .shared_buffers import BufferLayout, SharedBuffers, Slot
from .worker import Report, RunTask
from .worker_pool import WorkerPool, WorkItem

ATTEMPTS = 2  # a chunk that ends two workers would end any number of them
LISTED = 5  # clients in a message


@dataclass(frozen=True)
class TrainingSetup:
    """Everything about training that is the same in all rounds."""

    executor: Executor
    is_weight: Tensor | None
    layers: tuple[slice, ...]  # this and `is_weight` complete a round's `Context`
    # Settings of torch in this process on which the results of a model may depend.
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    matmul_precision: str = field(default_factory=torch.get_float32_matmul_precision)


@dataclass(frozen=True)
class ChunkTask:
    """The training of some clients, whose records are in a slot of the shared buffers."""

    slot: int
    clients: Index
    ctx: Context  # without the fields that are in the setup

    def failure_message(self, pid: int, how: str) -> str:
        """The message for the end of the last worker that trained these clients."""
        shown = ", ".join(map(str, self.clients[:LISTED]))
        more = f" and {len(self.clients) - LISTED} more" if len(self.clients) > LISTED else ""
        clients = f"client{'s' if len(self.clients) > 1 else ''} {shown}{more}"
        return (
            f"worker process {pid} {how} while it trained {clients} in round {self.ctx.t}, as did the one before it "
            "(is memory short?)"
        )


class TrainingPool:
    """At most `number` workers, and the memory that they share.

    The memory does not grow with the cohort: there are two slots for each worker, one for the chunk that it trains and
    one for a result that waits until the results before it are taken. The training of a chunk is a function of the
    slot's records and the message, so another worker can repeat it.
    """

    def __init__(self, executor: Executor, number: int, dtype: torch.dtype, ctx: Context) -> None:
        """`dtype` is that of the records. Raises InputError if what training needs cannot be sent to a process."""
        parts = _pickled(TrainingSetup(_without_test_data(executor), ctx.is_weight, ctx.layers), number)
        rows = min(executor.chunk, executor.batches.data.clients)
        layout = BufferLayout.of(executor, parts, rows, 2 * number, dtype)
        self._memory = SharedMemory(layout.size)
        allocate = TensorAllocator(self._memory)
        for place, part in zip(layout.setup_parts(allocate), parts, strict=True):
            place.numpy()[:] = np.frombuffer(part, np.uint8)
        self._buffers, self._slots = SharedBuffers(executor, layout, allocate), layout.slots
        file = self._memory.descriptor
        setup = partial(prepare_training, file, layout)
        self._workers = WorkerPool(number, partial(WorkerProcess, setup, (file,)), ATTEMPTS)

    def start(self, number: int) -> None:
        """Start up to `number` workers and wait until one is ready. Raises the error for which none can be."""
        self._workers.start(number)

    def close(self) -> None:
        """End all workers."""
        self._workers.close()

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context) -> Generator[ChunkResult]:
        """The result of each task, in their order; it is in shared memory, which the next result may overwrite.

        An error in a client's training is raised in place of its result, as without workers. Raises WorkerError if two
        workers end over one task.
        """
        for name, place in self._buffers.message.tensors().items():
            place.copy_(getattr(down, name))
        try:
            yield from self._in_order(tasks, replace(ctx, is_weight=None, layers=()))
        except BaseException:
            self.close()  # nobody needs the unfinished results; the next round starts new workers
            raise

    def _in_order(self, tasks: Iterator[ChunkInput], ctx: Context) -> Iterator[ChunkResult]:
        pending: deque[tuple[ChunkTask, WorkItem]] = deque()
        free = list(range(self._slots))
        while True:
            while free and (task := next(tasks, None)) is not None:
                chunk = ChunkTask(free.pop(), task.clients, ctx)
                place = self._slot(chunk).record
                for name, x in task.record.tensors().items():
                    getattr(place, name).copy_(x)
                pending.append((chunk, self._workers.submit(chunk)))
            if not pending:
                return
            chunk, item = pending.popleft()
            while not item.is_finished:
                self._workers.wait()
            yield replace(self._slot(chunk).result, gradients=item.result())
            free.append(chunk.slot)

    def _slot(self, chunk: ChunkTask) -> Slot:
        return self._buffers.slot(chunk.slot, len(chunk.clients))


def prepare_training(descriptor: int, layout: BufferLayout) -> RunTask:
    """Within a worker: prepare training from the shared memory; the returned function trains a chunk.

    That function writes to the chunk's slot and returns the number of minibatch gradients. Raises InputError if this
    process cannot build the model.
    """
    allocate = TensorAllocator(SharedMemory(layout.size, descriptor))
    parts = [part.numpy() for part in layout.setup_parts(allocate)]
    try:
        setup: TrainingSetup = join_pickle(parts)
    except Exception as error:
        raise InputError(f"workers: the model cannot be built in another process: {error}") from error
    torch.set_default_dtype(setup.default_dtype)
    torch.set_float32_matmul_precision(setup.matmul_precision)
    executor, buffers = setup.executor, SharedBuffers(setup.executor, layout, allocate)

    def train(chunk: ChunkTask, report: Report) -> int:
        slot = buffers.slot(chunk.slot, len(chunk.clients))
        ctx = replace(chunk.ctx, is_weight=setup.is_weight, layers=setup.layers)
        result = train_chunk(executor, ChunkInput(chunk.clients, slot.record), buffers.message, ctx)
        slot.result.fill(result)
        return result.gradients

    return train


def _without_test_data(executor: Executor) -> Executor:
    """`executor` without the samples that only the server uses."""
    training, training.batches = copy(executor), copy(executor.batches)
    training.batches.data = replace(executor.batches.data, test=None, validation=None, partition="")
    return training


def _pickled(setup: TrainingSetup, number: int) -> list[memoryview]:
    """The setup as the parts of a pickle. Raises InputError, which says what it is that cannot be pickled."""
    try:
        return split_pickle(setup)
    except Exception as error:
        try:
            split_pickle(setup.executor.objective.module)
            what = "method"
        except Exception:
            what = "model"
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"workers = {number}: the {what} cannot be sent to another process: {reason}; set workers = 1"
        ) from error
