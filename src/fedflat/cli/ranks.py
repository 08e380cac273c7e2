"""`--ranks`: run this command again in several processes of torchrun, on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..core.errors import InputError
from .console import Console


def launch(number: int, restarts: int, grace: int, words: Sequence[str]) -> None:
    """Run `python -m fedflat WORDS` in `number` ranks, and end with their exit code.

    Raises InputError for numbers that cannot work; typer.Exit if a rank fails, which has printed why.
    """
    if number < 1:
        raise InputError(f"--ranks {number} must be at least 1")
    for name, value in (("--max-restarts", restarts), ("--grace", grace)):
        if value < 0:
            raise InputError(f"{name} {value} must be at least 0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=number, run_id=f"fedflat-{os.getpid()}", max_restarts=restarts,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost", shutdown_timeout=grace,
    )  # fmt: skip
    with _exit_code_of_ranks():
        elastic_launch(config, sys.executable)("-m", "fedflat", *words)


@contextmanager
def _exit_code_of_ranks() -> Iterator[None]:
    """When ranks fail inside the block, end with the exit code of the one that failed first, without torch's report."""
    try:
        yield
    except ChildFailedError as error:
        # Ranks that torchrun ended (SIGTERM) come last, before them those that ended because they had lost the others.
        rank, failure = min(
            error.failures.items(), key=lambda one: (one[1].exitcode == -signal.SIGTERM, one[1].exitcode >= 0)
        )
        if failure.exitcode < 0:
            name = failure.signal_name()
            Console(stderr=True).say(
                f"fedflat: rank {rank} was ended by {name} (is memory short?); "
                "the same command goes on from the last checkpoint"
            )
        raise typer.Exit(code=failure.exitcode if failure.exitcode > 0 else 1) from error
    except SignalException as error:
        raise typer.Exit(code=128 + error.sigval) from error
