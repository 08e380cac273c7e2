"""`--ranks`: run this command again in several processes of torchrun, on this machine."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir

import typer
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..core.errors import InputError
from ..engine.local_ranks import BACKEND, LOOPBACK, OneMachine, meeting_place
from ..experiments.interrupt import signals_restored
from ..files import temporary_folder
from .console import Console

rendezvous_handler_registry.register(BACKEND, lambda parameters: OneMachine())


def launch(number: int, restarts: int, grace: int, words: Sequence[str]) -> None:
    """Run `python -m fedflat WORDS` in `number` ranks.

    Raises InputError for numbers that cannot work; if ranks fail, typer.Exit with the code of the first that failed.
    """
    for name, value, least in (("--ranks", number, 1), ("--max-restarts", restarts, 0), ("--grace", grace, 0)):
        if value < least:
            raise InputError(f"{name} {value} must be at least {least}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with signals_restored(), temporary_folder("fedflat-ranks-", Path(gettempdir())) as folder:
            config = LaunchConfig(
                min_nodes=1, max_nodes=1, nproc_per_node=number, run_id=f"fedflat-{os.getpid()}", max_restarts=restarts,
                rdzv_backend=BACKEND, local_addr=LOOPBACK, shutdown_timeout=grace,
                logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
            )  # fmt: skip
            with meeting_place(folder):
                elastic_launch(config, sys.executable)("-m", "fedflat", *words)
    except ChildFailedError as error:  # torch's own report of it is not shown
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
