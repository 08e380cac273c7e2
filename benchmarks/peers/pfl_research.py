"""What rounds of FedAvg cost in pfl-research.

    python benchmarks/peers/pfl_research.py [--workloads W1 W2 W3 W5] [--repeats 5] [--out FILE.json]

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse

import torch
from results import Result, Run, installed, parser, report
from tasks import Task, vector
from timing import Laps
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

PEER = "pfl-research"
INCLUDES = "batches sliced from tensors in memory, not shuffled, the last one partial; no augmentation, no evaluation"


def main() -> None:
    """Time the workloads."""
    asked = parser(__doc__ or "").parse_args()
    version = installed(PEER, "pfl", "pfl==0.6.0")
    report(asked, lambda name: [time(name, version, asked)])


def time(name: str, version: str, asked: argparse.Namespace) -> Result:
    """Return FedAvg on the work `name`."""
    run = Run.of(name, asked)
    module = TrainedModule(run.task.build())
    before = vector(module)
    laps = train(run, module)
    figures = run.figures(laps, before, vector(module))
    return Result(peer=PEER, version=version, work=name, method="FedAvg", includes=INCLUDES, **figures)


class TrainedModule(nn.Module):
    """A module with the two methods that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what clients minimise."""
        return cross_entropy(self.module(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        """Return the metrics of clients in round 0, which pfl always evaluates."""
        from pfl.metrics import Weighted

        with torch.no_grad():
            return {"loss": Weighted.from_unweighted(float(self.loss(x, y)))}


def train(run: Run, module: TrainedModule) -> Laps:
    """Return all rounds, timed; the module holds the server's model afterwards."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    task, server = run.task, torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=server)
    data = federated(task)
    rounds = NNAlgorithmParams(
        central_num_iterations=run.all_rounds,
        evaluation_frequency=run.all_rounds,
        train_cohort_size=task.cohort,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(
        local_batch_size=task.work.batch,
        local_num_epochs=task.epochs,
        local_learning_rate=task.work.client().lr,
    )
    laps = Laps(server=server)
    FederatedAveraging().run(
        rounds, SimulatedBackend(data, data), model, local, callbacks=[ends(laps)], send_metrics_to_platform=False
    )
    return laps


def federated(task: Task) -> object:
    """Return the clients as pfl wants them; they take turns."""
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler

    clients = dict(enumerate(task.clients()))
    return FederatedDataset.from_slices(clients, get_user_sampler("minimize_reuse", list(clients)))


def ends(laps: Laps) -> object:
    """Return a callback that marks the ends of rounds."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class Ends(TrainingProcessCallback):
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
            laps.end()
            return False, Metrics()

    return Ends()


if __name__ == "__main__":
    main()
