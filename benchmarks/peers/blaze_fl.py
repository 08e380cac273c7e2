"""What rounds of FedAvg cost in BlazeFL, with one client after another and with clients in threads.

    python benchmarks/peers/blaze_fl.py [--workloads W1 W2 W3 W5] [--workers 2] [--repeats 5] [--out FILE.json]

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import torch
from results import Result, Run, installed, parser, report
from tasks import Task, vector
from timing import Laps
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

PEER = "BlazeFL"
INCLUDES = "torch's DataLoader on tensors in memory, shuffled, the last batch partial; no augmentation, no evaluation"


def main() -> None:
    """Time the workloads."""
    made = parser(__doc__ or "")
    made.add_argument("--workers", type=int, default=2, help="threads of the second figure (default 2)")
    asked = made.parse_args()
    version = installed(PEER, "blazefl", "blazefl==3.0.0a1")
    installed(PEER, "tqdm", "tqdm")
    report(asked, lambda name: every(name, version, asked))


def every(name: str, version: str, asked: argparse.Namespace) -> Iterator[Result]:
    """Yield FedAvg on the work `name`: one client after another, and in threads."""
    run = Run.of(name, asked)
    clients = Clients(run.task)
    shared: dict[str, Any] = {"peer": PEER, "version": version, "work": name}
    yield Result(method="FedAvg", includes=INCLUDES, **shared, **time(run, clients))
    threads = f"{asked.workers} threads"
    includes = f"{INCLUDES}; clients in {threads}, a new model for each"
    yield Result(method=f"FedAvg {threads}", includes=includes, **shared, **time(run, clients, asked.workers))


class Clients:
    """The clients' samples in memory, with the method that BlazeFL asks for."""

    def __init__(self, task: Task) -> None:
        self._samples = [TensorDataset(*samples) for samples in task.clients()]

    def get_dataloader(self, type_: str, cid: int, batch_size: int, generator: Generator) -> DataLoader[Any]:
        """Return the batches of the client `cid`."""
        return DataLoader(self._samples[cid], batch_size, shuffle=True, generator=generator)


class Models:
    """The model of a work, with the method that BlazeFL asks for."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def select_model(self, model_name: str) -> nn.Module:
        """Return a model with new random weights; there is only one kind."""
        return self._task.build()


def time(run: Run, clients: Clients, workers: int | None = None) -> dict[str, Any]:
    """Return the figures of one simulation; `workers` is the number of threads that train clients."""
    torch.manual_seed(0)
    server = handler(run, clients)
    before = vector(server.model)
    laps, after = train(run, server, trainer(run.task, clients, workers))
    return run.figures(laps, before, after)


def train(run: Run, server: Any, clients: Any) -> tuple[Laps, Tensor]:
    """Return all rounds, timed, and the server's model after them, (d,)."""
    laps = Laps()
    with redirect_stderr(io.StringIO()):  # a progress bar for every round
        laps.begin()
        for _ in range(run.all_rounds):
            clients.local_process(server.downlink_package(), server.sample_clients())
            for package in clients.uplink_package():
                server.load(package)
            laps.end()
    return laps, vector(server.model)


def handler(run: Run, clients: Clients) -> Any:
    """Return the server."""
    from blazefl.contrib import FedAvgBaseServerHandler

    task = run.task
    return FedAvgBaseServerHandler(
        model_selector=Models(task),
        model_name=task.work.model,
        dataset=clients,
        global_round=run.all_rounds,
        num_clients=task.work.clients,
        sample_ratio=min(1.0, (task.cohort + 0.5) / task.work.clients),  # the number is rounded down there
        device="cpu",
        batch_size=task.work.batch,
        seed=0,
    )


def trainer(task: Task, clients: Clients, workers: int | None) -> Any:
    """Return what trains the clients of a round, in `workers` threads; without them, one client after another."""
    from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgThreadPoolClientTrainer

    settings: dict[str, Any] = {
        "model_selector": Models(task),
        "model_name": task.work.model,
        "dataset": clients,
        "device": "cpu",
        "num_clients": task.work.clients,
        "epochs": task.epochs,
        "batch_size": task.work.batch,
        "lr": task.work.client().lr,
        "seed": 0,
    }
    if workers is None:
        return FedAvgBaseClientTrainer(**settings)
    return FedAvgThreadPoolClientTrainer(**settings, num_parallels=workers)


if __name__ == "__main__":
    main()
