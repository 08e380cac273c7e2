"""What rounds of FedAvg cost in fluke.

    python benchmarks/peers/fluke_fl.py [--workloads W1 W2 W3 W5] [--repeats 5] [--out FILE.json]

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stdout
from typing import Any

from results import Result, Run, installed, parser, report
from tasks import Task, vector
from timing import Laps
from torch import nn

from benchmarks.workloads import CLASSES

PEER = "fluke"
INCLUDES = (
    "fluke's FastDataLoader: slices of tensors in memory, which are permuted in every epoch, the last batch partial; "
    "no augmentation, no evaluation"
)


def main() -> None:
    """Time the workloads."""
    asked = parser(__doc__ or "").parse_args()
    version = installed(PEER, "fluke-fl", "fluke-fl==0.8.1")
    report(asked, lambda name: [time(name, version, asked)])


def time(name: str, version: str, asked: argparse.Namespace) -> Result:
    """Return FedAvg on the work `name`."""
    run = Run.of(name, asked)
    module = run.task.build()
    before = vector(module)
    laps = train(run, module)
    figures = run.figures(laps, before, vector(module))
    return Result(peer=PEER, version=version, work=name, method="FedAvg", includes=INCLUDES, **figures)


def train(run: Run, module: nn.Module) -> Laps:
    """Return all rounds, timed; `module` holds the server's model afterwards."""
    from fluke import FlukeENV
    from fluke.algorithms.fedavg import FedAVG

    task, laps = run.task, Laps()
    FlukeENV().set_seed(0)
    FlukeENV().set_eval_cfg(server=False)  # clients do not evaluate unless they are told to
    method = FedAVG(task.work.clients, splitter(task), hyper_parameters(task, module))
    method.set_callbacks([ends(laps)])
    share = min(1.0, (task.cohort + 0.5) / task.work.clients)  # the number is rounded down there
    with redirect_stdout(io.StringIO()):  # its progress bars
        laps.begin()
        method.run(run.all_rounds, share)
    return laps


def splitter(task: Task) -> Any:
    """Return the clients' samples as fluke wants them when they are already divided."""
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader

    loading: dict[str, Any] = {"num_labels": CLASSES, "batch_size": task.work.batch, "shuffle": True}
    clients = [FastDataLoader(*samples, **loading) for samples in task.clients()]
    return DataSplitter(DummyDataContainer(clients, [None] * len(clients), None, num_classes=CLASSES))


def hyper_parameters(task: Task, module: nn.Module) -> Any:
    """Return the settings of the work: plain SGD of constant step size, and a mean by numbers of samples."""
    from fluke import DDict

    client = {
        "batch_size": task.work.batch,
        "local_epochs": task.epochs,
        "loss": nn.CrossEntropyLoss,
        "optimizer": {"name": "SGD", "lr": task.work.client().lr},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
    }
    return DDict(model=module, client=client, server={"weighted": True})


def ends(laps: Laps) -> Any:
    """Return an observer that marks the ends of rounds."""
    from fluke.utils import FederationObserver

    class Ends(FederationObserver):  # type: ignore[misc]
        def end_round(self, round: int) -> None:
            laps.end()

    return Ends()


if __name__ == "__main__":
    main()
