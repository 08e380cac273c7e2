"""A process that carries out the runs which its parent hands it, one after another, until the parent is gone.

Started as `python -m fedflat.experiments.run_worker CHANNEL`, the number of an open file that it inherits.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from ..engine.allocator import tune_allocator
from ..engine.child_process import parents_channel, sendable
from ..engine.simulation import Round
from .change_warnings import changes_in_one_line
from .config_errors import validated
from .interrupt import Interrupted, StopRequest, stop_between_rounds
from .messages import Commission, Ended, Event
from .run_directory import RunDirectory, StoredRun
from .runner import RunObserver, carry_out
from .spec import RunSpec


class Messenger(RunObserver):
    """An observer that sends to the parent what it is told."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send

    def run_started(self, spec: RunSpec, done: int) -> None:
        self._send(Event("run_started", (done,)))

    def round_done(self, spec: RunSpec, result: Round) -> None:
        self._send(Event("round_done", (result,)))

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        self._send(Event("measuring", (name, done, total)))

    def run_finished(self, spec: RunSpec, run: StoredRun) -> None:
        self._send(Event("run_finished", (run,)))

    def run_failed(self, spec: RunSpec, error: Exception) -> None:
        """Told by the parent, which hears of the error."""


def serve(channel: Connection, request: StopRequest) -> None:
    """Carry out what comes through `channel`."""
    watcher = Messenger(channel.send)
    while True:
        commission: Commission = channel.recv()
        try:
            spec = validated(RunSpec, tomllib.loads(commission.toml))
            carry_out(spec, RunDirectory(commission.path), watcher, request, commission.strict)
            ended = Ended()
        except Interrupted:
            ended = Ended()
        except Exception as error:
            ended = Ended(sendable(error))
        channel.send(ended)


def main() -> None:
    """Serve the parent that started this process."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tune_allocator()
    gone = suppress(EOFError, OSError)  # the parent
    with changes_in_one_line(), parents_channel() as channel, stop_between_rounds() as request, gone:
        serve(channel, request)


if __name__ == "__main__":
    main()
