"""Who trains the clients: this process, or several side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from time import perf_counter
from typing import Any, Literal

import torch

from ...core.errors import InputError
from ...core.method import Context
from ...rounds.executor import Executor
from ..cohort import ChunkResult, Task, train_chunk
from .crew import WorkerError
from .pool import Pool

# Seconds of training in this process after which `auto` starts workers. Each takes 2 to 3 seconds to start.
ALONE = 10.0


class Workers:
    """Trains the chunks of a cohort; who does it changes no bit of what comes out.

    This process does it where there is nothing to gain: one chunk, one worker, or too little work so far.
    """

    def __init__(self, executor: Callable[[], Executor], number: int | Literal["auto"], device: torch.device) -> None:
        """At most `number` processes; `auto` is as many as torch has threads, as soon as starting them pays."""
        self._executor, self._auto = executor, number == "auto"
        possible = device.type == "cpu" and os.name == "posix"
        self.number = number if number != "auto" else torch.get_num_threads() if possible else 1
        if self.number > 1 and not possible:
            where = f"device = '{device}'" if device.type != "cpu" else "this system"
            raise InputError(f"workers = {number}: on {where} one process trains all clients; set workers = 1")
        self._alone = 0.0  # seconds of training in this process
        self._pool: Pool | None = None

    @property
    def executor(self) -> Executor:
        """How clients are run; asked for in the first round, since it may be chosen by trial."""
        return self._executor()

    def parts(self, tasks: Iterator[Task], down: Any, ctx: Context) -> Generator[ChunkResult]:
        """What the training of each task gives, in their order; good until the next is asked for."""
        left = -(-ctx.sampled // self.executor.chunk)
        pool = None
        while left and (pool := self._shared(left, down, ctx)) is None:
            task, started = next(tasks), perf_counter()
            part = train_chunk(self.executor, task, down, ctx)
            self._alone += perf_counter() - started
            left -= 1
            yield part
        if pool is not None:
            yield from pool.parts(tasks, down, ctx)

    def close(self) -> None:
        """End the workers, if there are any; another round would start new ones."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _shared(self, left: int, down: Any, ctx: Context) -> Pool | None:
        """The workers, if they are to train the `left` chunks that are left of a round."""
        if min(left, self.number) < 2 or (self._auto and self._alone < ALONE):
            return None
        if self._pool is None:
            try:
                self._pool = Pool(self.executor, self.number, down.w.dtype, ctx)
                self._pool.start(left)
            except (InputError, WorkerError, OSError):
                if not self._auto:
                    raise
                self.number = 1
                self.close()
        return self._pool
