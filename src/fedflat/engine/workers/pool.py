"""Trains the chunks of a cohort side by side, in worker processes and shared memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from pickle import PicklingError
from typing import Any

import numpy as np
import torch

from ...core.errors import InputError
from ...core.method import Context
from ...rounds.executor import Executor
from ..child_process import Child
from ..cohort import ChunkResult, Task
from ..shared_memory import Cutter, SharedMemory, taken_apart
from .board import Answer, Assignment, Board, Equipment, Outline
from .crew import Crew, Job


class Pool:
    """At most `number` workers, and the memory that they share.

    Memory does not grow with the cohort: there are two slots for each worker, one to work in, and one whose result
    waits for its turn. Training is a function of a slot's records and the message, so another worker can do it again.
    """

    def __init__(self, executor: Executor, number: int, dtype: torch.dtype, ctx: Context) -> None:
        """`dtype` is that of the records. Raises InputError if what training takes cannot be sent to a process."""
        self._executor = executor
        parts = _sendable(Equipment(_for_training(executor), ctx.is_weight, ctx.layers), number)
        rows = min(executor.chunk, executor.batches.data.clients)
        outline = Outline.of(executor, parts, rows, 2 * number, dtype)
        memory = SharedMemory(outline.size)
        cut = Cutter(memory)
        for shelf, part in zip(outline.shelves(cut), parts, strict=True):
            shelf.numpy()[:] = np.frombuffer(part, np.uint8)
        self._board, self._slots = Board(executor, outline, cut), range(outline.slots)
        self._crew = Crew(number, partial(_worker, memory, outline))
        self.start, self.close = self._crew.start, self._crew.close

    def parts(self, tasks: Iterator[Task], down: Any, ctx: Context) -> Generator[ChunkResult]:
        """What the training of each task gives, in their order; each lies in shared memory until the next is asked for.

        An error in a client's training is raised when its turn comes, as without workers. Raises WorkerError if two
        workers end over one task.
        """
        for name, place in self._board.down.tensors().items():
            place.copy_(getattr(down, name))
        try:
            yield from self._in_order(tasks, replace(ctx, is_weight=None, layers=()))
        except BaseException:
            self.close()  # nobody waits for what is not done; the next round starts new workers
            raise

    def _in_order(self, tasks: Iterator[Task], ctx: Context) -> Iterator[ChunkResult]:
        jobs: deque[Job] = deque()
        free = list(self._slots)
        while True:
            while free and (task := next(tasks, None)) is not None:
                jobs.append(self._job(task, free.pop(), ctx))
            if not jobs:
                return
            while (answer := jobs[0].answer) is None:
                self._crew.listen()
            assignment = jobs.popleft().assignment
            yield self._result(assignment, answer)
            free.append(assignment.slot)

    def _job(self, task: Task, number: int, ctx: Context) -> Job:
        """A task handed to the workers, its records in the slot with this number."""
        place = self._board.slot(number, len(task.clients)).record
        for name, x in task.record.tensors().items():
            getattr(place, name).copy_(x)
        job = Job(Assignment(number, task.clients, ctx))
        self._crew.take(job)
        return job

    def _result(self, assignment: Assignment, answer: Answer) -> ChunkResult:
        if answer.error is not None:
            raise answer.error
        return replace(self._board.slot(assignment.slot, len(assignment.clients)).part, gradients=answer.gradients)


def _worker(memory: SharedMemory, outline: Outline) -> Child:
    """A new worker, which says so, with an `Answer`, when it is ready or cannot be."""
    child = Child(f"{__package__}.worker", (memory.handle,))
    child.tell(outline)
    return child


def _for_training(executor: Executor) -> Executor:
    """`executor` without the samples that only the server uses."""
    alone, alone.batches = copy(executor), copy(executor.batches)
    alone.batches.data = replace(executor.batches.data, test=None, validation=None)
    return alone


def _sendable(equipment: Equipment, number: int) -> list[memoryview]:
    """The equipment taken apart. Raises InputError, saying what it is that cannot be sent."""
    try:
        return taken_apart(equipment)
    except (PicklingError, AttributeError, TypeError) as error:
        try:
            taken_apart(equipment.executor.objective.module)
            what = "method"
        except (PicklingError, AttributeError, TypeError):
            what = "model"
        raise InputError(
            f"workers = {number}: the {what} cannot be sent to another process: {str(error).splitlines()[0]}; "
            "define it in a module that can be imported, or set workers = 1"
        ) from error
