"""A worker process: trains the clients that its parent assigns to it, on one thread, until the parent is gone.

Started as `python -m fedflat.engine.workers.worker CHANNEL MEMORY`, the numbers of two open files that it inherits.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from ...core.errors import InputError
from ..allocator import tune_allocator
from ..child_process import parents_channel, sendable
from ..cohort import Task, train_chunk
from ..shared_memory import Cutter, SharedMemory, put_together
from .board import Answer, Assignment, Board, Equipment, Outline


class Trainer:
    """Carries out assignments in shared memory."""

    def __init__(self, outline: Outline, handle: int) -> None:
        """Raises InputError if what training takes cannot be built in this process."""
        cut = Cutter(SharedMemory(outline.size, handle))
        shelves = [shelf.numpy() for shelf in outline.shelves(cut)]
        try:
            self._equipment: Equipment = put_together(shelves)
        except Exception as error:
            raise InputError(f"workers: the model cannot be built in another process: {error}") from error
        torch.set_default_dtype(self._equipment.default_dtype)
        torch.set_float32_matmul_precision(self._equipment.matmul_precision)
        self._board = Board(self._equipment.executor, outline, cut)

    def carry_out(self, assignment: Assignment) -> Answer:
        """Train the clients of a slot, and fill it with what that gives."""
        executor = self._equipment.executor
        slot = self._board.slot(assignment.slot, len(assignment.clients))
        ctx = replace(assignment.ctx, is_weight=self._equipment.is_weight, layers=self._equipment.layers)
        part = train_chunk(executor, Task(assignment.clients, slot.record), self._board.down, ctx)
        slot.part.fill(part)
        return Answer(part.gradients)


def serve(channel: Connection, handle: int) -> None:
    """Answer the parent: once when ready, then after every assignment."""
    outline = channel.recv()
    try:
        tune_allocator()
        trainer = Trainer(outline, handle)
        channel.send(Answer())
    except InputError as error:
        return channel.send(Answer(error=error))
    while True:
        assignment = channel.recv()
        try:
            answer = trainer.carry_out(assignment)
        except Exception as error:
            answer = Answer(error=sendable(error))
        channel.send(answer)


def main() -> None:
    """Serve the parent that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to end
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with parents_channel() as channel, suppress(EOFError, OSError):  # the parent is gone
        serve(channel, int(sys.argv[2]))


if __name__ == "__main__":
    main()
