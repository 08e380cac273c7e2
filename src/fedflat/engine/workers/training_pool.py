"""Training of a round's clients in this process or, if that saves time, in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...core.errors import InputError
from ...core.method import Context
from ...data.types import Index
from ...operating_system import IS_POSIX, refuse_on_windows
from ...rounds.executor import Executor
from ..cohort import ChunkInput, ChunkResult, train_chunk
from ..shared_memory import BufferLayout, SharedBuffers, SharedMemory, TensorAllocator, join_pickle, split_pickle
from .process import Report, RunTask, WorkerProcess
from .worker_pool import WorkerError, WorkerPool, WorkItem

# Seconds of training in this process after which `auto` starts workers. Each takes 2 to 3 seconds to start.
WORTH_STARTING = 10.0
ATTEMPTS = 2  # of a chunk; if two workers ended while training it, others would end, too
LISTED = 5  # most clients named in a message


class Workers:
    """Trains the chunks of a cohort; no bit of the result depends on which process trains a chunk.

    This process trains the chunks if workers would save no time: with one chunk, with one worker, or, if the number of
    workers is `auto`, in the first `WORTH_STARTING` seconds of training.
    """

    def __init__(
        self, executor: Callable[[], Executor], number: int | Literal["auto"], device: torch.device,
        stands_alone: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Use at most `number` processes; for `auto`, as many as torch's threads, after `WORTH_STARTING` seconds.

        stands_alone: tells whether a client's result has the same bits in any stack, so that stacks may be divided.
        """
        self._executor, self._auto, self._stands_alone = executor, number == "auto", stands_alone
        possible = device.type == "cpu" and IS_POSIX
        self.number = number if number != "auto" else torch.get_num_threads() if possible else 1
        if self.number > 1:
            refuse_on_windows(f"workers = {number}", "worker processes", "set workers = 1")
        if self.number > 1 and not possible:
            raise InputError(
                f"workers = {number}: on device = '{device}' one process trains all clients; set workers = 1"
            )
        self._seconds = 0.0  # of training in this process
        self._pool: TrainingPool | None = None

    @property
    def executor(self) -> Executor:
        """The executor that trains a chunk; it is chosen in the first round, possibly by a trial."""
        return self._executor()

    @property
    def at_once(self) -> int:
        """The number of processes that a cohort is divided among; 1 if smaller stacks would change bits."""
        if self.number < 2 or (self._auto and self._seconds < WORTH_STARTING):
            return 1
        return self.number if self.executor.chunk == 1 or self._divisible else 1

    @cached_property
    def _divisible(self) -> bool:
        return self._stands_alone()

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context, chunks: int) -> Generator[ChunkResult]:
        """Yield the result of each of `chunks` tasks, in order; a result is valid until the next one is requested."""
        while chunks and not self._use_workers(chunks, down, ctx):
            task, started = next(tasks), perf_counter()
            result = train_chunk(self.executor, task, down, ctx)
            self._seconds += perf_counter() - started
            chunks -= 1
            yield result
        if chunks and self._pool is not None:
            yield from self._pool.parts(tasks, down, ctx)

    def close(self) -> None:
        """End the workers, if there are any; the next round would start new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _use_workers(self, chunks: int, down: Any, ctx: Context) -> bool:
        """Tell whether workers train the remaining `chunks` of a round; if so, wait until one is ready."""
        if min(chunks, self.number) < 2 or (self._auto and self._seconds < WORTH_STARTING):
            return False
        if self._pool is None:
            try:
                self._pool = TrainingPool(self.executor, self.number, down.w.dtype, ctx)
                self._pool.start(chunks)
            except (InputError, WorkerError, OSError):
                if not self._auto:
                    raise
                self.number = 1
                self.close()
        return self._pool is not None


@dataclass(frozen=True)
class TrainingSetup:
    """The inputs of training that are the same in all rounds."""

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
        """Return the error message after worker `pid`, the last one that trained these clients, ended."""
        shown = ", ".join(map(str, self.clients[:LISTED]))
        more = f" and {len(self.clients) - LISTED} more" if len(self.clients) > LISTED else ""
        clients = f"client{'s' if len(self.clients) > 1 else ''} {shown}{more}"
        return (
            f"worker process {pid} {how} while it trained {clients} in round {self.ctx.t}, as did the one before it "
            "(is memory short?)"
        )


class TrainingPool:
    """Up to `number` workers, and the memory that they share.

    The memory does not grow with the cohort: there are two slots for each worker, one for the chunk that it trains and
    one for a result that waits for the results before it. The training of a chunk is a function of the
    slot's records and the message, so another worker can repeat it.
    """

    def __init__(self, executor: Executor, number: int, dtype: torch.dtype, ctx: Context) -> None:
        """Share the training setup. dtype: of the records. Raises InputError if the setup cannot be pickled."""
        training, batches = copy(executor), copy(executor.batches)
        # Without the samples that only the server uses.
        batches.data = replace(batches.data, test=None, validation=None, own_test=None, client_names=(), partition="")
        training.batches = batches
        parts = _pickled(TrainingSetup(training, ctx.is_weight, ctx.layers), number)
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
        """Start up to `number` workers and wait until one is ready. Raises the error of the setup if it fails."""
        self._workers.start(number)

    def close(self) -> None:
        """End all workers."""
        self._workers.close()

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context) -> Generator[ChunkResult]:
        """Yield the result of each task, in order; a result is in shared memory, which the next one may overwrite.

        An error in a client's training is raised in place of the result of its task, as without workers. Raises
        WorkerError if two workers end while they run the same task.
        """
        for name, place in self._buffers.message.tensors().items():
            place.copy_(getattr(down, name))
        try:
            yield from self._in_order(tasks, replace(ctx, is_weight=None, layers=()))
        except BaseException:
            self.close()  # unfinished results are of no use; the next round starts new workers
            raise

    def _in_order(self, tasks: Iterator[ChunkInput], ctx: Context) -> Iterator[ChunkResult]:
        pending: deque[tuple[ChunkTask, WorkItem]] = deque()
        free = list(range(self._slots))
        while True:
            while free and (task := next(tasks, None)) is not None:
                chunk = ChunkTask(free.pop(), task.clients, ctx)
                place, _ = self._buffers.slot(chunk.slot, len(chunk.clients))
                for name, x in task.record.tensors().items():
                    getattr(place, name).copy_(x)
                pending.append((chunk, self._workers.submit(chunk)))
            if not pending:
                return
            chunk, item = pending.popleft()
            while not item.is_finished:
                self._workers.wait()
            _, result = self._buffers.slot(chunk.slot, len(chunk.clients))
            yield replace(result, gradients=item.result())
            free.append(chunk.slot)


def prepare_training(descriptor: int, layout: BufferLayout) -> RunTask:
    """Prepare a worker process for training, from the shared memory; return the function that trains a chunk.

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
        record, room = buffers.slot(chunk.slot, len(chunk.clients))
        ctx = replace(chunk.ctx, is_weight=setup.is_weight, layers=setup.layers)
        result = train_chunk(executor, ChunkInput(chunk.clients, record), buffers.message, ctx)
        for place, x in zip(room.tensors(), result.tensors(), strict=True):
            place.copy_(x)
        return result.gradients

    return train


def _pickled(setup: TrainingSetup, number: int) -> list[memoryview]:
    """Return the setup as the parts of a pickle. Raises InputError, naming the part that cannot be pickled."""
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
