"""What a worker process does: it runs the tasks that its parent sends, until the parent ends."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from ..allocator import tune_allocator


@dataclass(frozen=True)
class Event:
    """A report from a task that is not finished yet."""

    content: Any


@dataclass(frozen=True)
class Outcome:
    """A task, or the setup, is finished."""

    result: Any = None
    error: Exception | None = None


Report = Callable[[Any], None]  # sends an event to the parent
RunTask = Callable[[Any, Report], Any]  # of a task and where it reports events; what it returns goes to the parent


def serve(connection: Connection) -> None:
    """Set up this process, then run one task after another. Raises EOFError or OSError when the parent has ended."""
    try:
        setup: Callable[[], RunTask] = connection.recv()
        run = setup()
    except Exception as error:
        return connection.send(Outcome(error=picklable(error)))
    connection.send(Outcome())
    while True:
        task = connection.recv()
        try:
            outcome = Outcome(run(task, lambda event: connection.send(Event(event))))
        except Exception as error:
            outcome = Outcome(error=picklable(error))
        connection.send(outcome)


def picklable(error: Exception) -> Exception:
    """`error` with its traceback as a note, or a RuntimeError with the same text if `error` cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (just made)
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _exit_with_parent(descriptor: int) -> None:
    """Wait until the other end of the connection is closed, which the system does when the parent ends; then exit."""
    poll = select.poll()
    poll.register(descriptor, 0)  # only the event of hanging up, which is always reported
    poll.poll()
    os._exit(1)


def main() -> None:
    """Serve the parent that started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when this process ends
        signal.signal(number, signal.SIG_IGN)
    descriptor = int(sys.argv[1])
    threading.Thread(target=_exit_with_parent, args=(descriptor,), daemon=True).start()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tune_allocator()
    with Connection(descriptor) as connection, suppress(EOFError, OSError):
        serve(connection)
