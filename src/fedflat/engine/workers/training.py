"""Decides whether this process trains the clients of a round, or several worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from time import perf_counter
from typing import Any, Literal

import torch

from ...core.errors import InputError
from ...core.method import Context
from ...rounds.executor import Executor
from ..cohort import ChunkInput, ChunkResult, train_chunk
from .training_pool import TrainingPool
from .worker_pool import WorkerError

# Seconds of training in this process after which `auto` starts workers. Each takes 2 to 3 seconds to start.
WORTH_STARTING = 10.0


class Workers:
    """Trains the chunks of a cohort; no bit of the result depends on which process trains a chunk.

    This process trains where workers would gain nothing: one chunk, one worker, or too little work so far.
    """

    def __init__(self, executor: Callable[[], Executor], number: int | Literal["auto"], device: torch.device) -> None:
        """At most `number` processes; `auto` is as many as torch has threads, as soon as it pays to start them."""
        self._executor, self._auto = executor, number == "auto"
        possible = device.type == "cpu" and os.name == "posix"
        self.number = number if number != "auto" else torch.get_num_threads() if possible else 1
        if self.number > 1 and not possible:
            where = f"device = '{device}'" if device.type != "cpu" else "this system"
            raise InputError(f"workers = {number}: on {where} one process trains all clients; set workers = 1")
        self._seconds = 0.0  # of training in this process
        self._pool: TrainingPool | None = None

    @property
    def executor(self) -> Executor:
        """The executor that trains a chunk; it is chosen in the first round, possibly by a trial."""
        return self._executor()

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context) -> Generator[ChunkResult]:
        """The result of each task, in their order; each is valid until the next is asked for."""
        chunks = -(-ctx.sampled // self.executor.chunk)
        while chunks and not self._use_workers(chunks, down, ctx):
            task, started = next(tasks), perf_counter()
            result = train_chunk(self.executor, task, down, ctx)
            self._seconds += perf_counter() - started
            chunks -= 1
            yield result
        if chunks and self._pool is not None:
            yield from self._pool.parts(tasks, down, ctx)
        for task in tasks:  # colluding attackers, who come last, make a chunk more than so many clients need
            yield train_chunk(self.executor, task, down, ctx)

    def close(self) -> None:
        """End the workers, if there are any; the next round would start new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _use_workers(self, chunks: int, down: Any, ctx: Context) -> bool:
        """Whether workers are to train the remaining `chunks` of a round; if so, some are ready."""
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
