"""What rounds of FedAvg cost in FedLab.

    python benchmarks/peers/fed_lab.py [--workloads W1 W2 W3 W5] [--repeats 5] [--out FILE.json]

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import random

from results import Result, Run, installed, parser, report
from tasks import Task, vector
from timing import Laps
from torch import Tensor, nn
from torch.utils.data import DataLoader

PEER = "FedLab"
INCLUDES = "torch's DataLoader on tensors in memory, shuffled, the last batch partial; no augmentation, no evaluation"


def main() -> None:
    """Time the workloads."""
    asked = parser(__doc__ or "").parse_args()
    version = installed(PEER, "fedlab", "fedlab==1.3.0")
    report(asked, lambda name: [time(name, version, asked)])


def time(name: str, version: str, asked: argparse.Namespace) -> Result:
    """Return FedAvg on the work `name`."""
    run = Run.of(name, asked)
    module = run.task.build()
    laps, after = train(run, module)
    figures = run.figures(laps, vector(module), after)
    return Result(peer=PEER, version=version, work=name, method="FedAvg", includes=INCLUDES, **figures)


def train(run: Run, module: nn.Module) -> tuple[Laps, Tensor]:
    """Return all rounds, timed, and the server's model after them, (d,)."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.core.standalone import StandalonePipeline

    random.seed(0)
    task, laps = run.task, Laps()
    trainer = SGDSerialClientTrainer(module, task.work.clients)
    trainer.setup_dataset(loaders(task))
    trainer.setup_optim(task.epochs, task.work.batch, task.work.client().lr)
    share = min(1.0, (task.cohort + 0.5) / task.work.clients)  # the number is rounded down there
    server = SyncServerHandler(module, run.all_rounds, share)

    class Timed(StandalonePipeline):
        def evaluate(self) -> None:
            laps.end()

    pipeline = Timed(server, trainer)
    laps.begin()
    pipeline.main()
    return laps, server.model_parameters


def loaders(task: Task) -> object:
    """Return the clients as FedLab wants them: its own classes keep each in a file, this one in memory."""
    from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset

    clients = task.clients()

    class Clients(FedDataset):
        def get_dataloader(self, id: int, batch_size: int) -> DataLoader[tuple[Tensor, Tensor]]:
            return DataLoader(BaseDataset(*clients[id]), batch_size, shuffle=True)

    return Clients()


if __name__ == "__main__":
    main()
