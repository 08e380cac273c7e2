"""A worker process: trains the clients that its parent assigns to it, on one thread, until the parent is gone.

Started as `python -m fedflat.engine.workers.worker CHANNEL MEMORY`, the numbers of two open files that it inherits.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from ...core.errors import InputError
from ..allocator import tune_allocator
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
        executor, before = self._equipment.executor, self._equipment.executor.gradients
        slot = self._board.slot(assignment.slot, len(assignment.clients))
        ctx = replace(assignment.ctx, is_weight=self._equipment.is_weight, layers=self._equipment.layers)
        slot.part.fill(train_chunk(executor, Task(assignment.clients, slot.record), self._board.down, ctx))
        return Answer(executor.gradients - before)


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
            answer = Answer(error=_sendable(error))
        channel.send(answer)


def _sendable(error: Exception) -> Exception:
    """`error` with where it happened as a note; one that cannot be sent as a RuntimeError that says the same."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (just made)
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _end_with_parent(channel: int) -> None:
    """Wait until the other end of the channel is closed, as the system does when the parent ends, however it ends."""
    watched = select.poll()
    watched.register(channel, 0)  # nothing but the hanging up, which is always told
    watched.poll()
    os._exit(1)


def main() -> None:
    """Serve the parent that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to end
        signal.signal(number, signal.SIG_IGN)
    channel, memory = map(int, sys.argv[1:])
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    torch.set_num_threads(1)
    with Connection(channel) as connection, suppress(EOFError, OSError):  # the parent is gone
        serve(connection, memory)


if __name__ == "__main__":
    main()
