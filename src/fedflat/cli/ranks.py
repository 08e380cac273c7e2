"""`--ranks`: this command again in several processes of torchrun, on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..core.errors import InputError
from .console import Console

RanksFlag = Annotated[
    int,
    typer.Option(
        "--ranks", help="Processes, started by torchrun, that share the clients of every round; no bit depends on them."
    ),
]
RestartsFlag = Annotated[
    int, typer.Option("--max-restarts", help="With --ranks: how often torchrun starts all of them again when one ends.")
]
GraceFlag = Annotated[
    int,
    typer.Option("--grace", help="With --ranks: seconds for a rank to end after a signal; more than a round takes."),
]
PatienceFlag = Annotated[
    float, typer.Option("--patience", help="Seconds that a rank waits for the others; more than a round takes.")
]
GRACE = 60


def launch(number: int, restarts: int, grace: int, words: Sequence[str]) -> None:
    """Run `python -m fedflat WORDS` as so many ranks, and end as they do.

    Raises InputError if there cannot be so many; typer.Exit if one fails, which has said why.
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
    with _ending_alike():
        elastic_launch(config, sys.executable)("-m", "fedflat", *words)


def _consequence(code: int) -> int:
    """How much the end of a rank looks like the consequence of another's: torchrun ends the rest by SIGTERM."""
    return 2 if code == -signal.SIGTERM else 1 if code >= 0 else 0


@contextmanager
def _ending_alike() -> Iterator[None]:
    """The end of the ranks as that of this command, without torch's report of it."""
    try:
        yield
    except ChildFailedError as error:
        rank, failure = min(error.failures.items(), key=lambda one: _consequence(one[1].exitcode))
        if failure.exitcode < 0:
            name = failure.signal_name()
            Console(stderr=True).say(
                f"fedflat: rank {rank} was ended by {name} (is memory short?); "
                "the same command goes on from the last checkpoint"
            )
        raise typer.Exit(code=failure.exitcode if failure.exitcode > 0 else 1) from error
    except SignalException as error:
        raise typer.Exit(code=128 + error.sigval) from error
