from __future__ import annotations

from ..core.method import Sources
from .fedavg import FedAvg


class Centralised(FedAvg):
    """SGD on the pooled samples of all clients, with as many gradients as a cohort takes.

    client  a single one with all samples: w <- w - lr g(w), in as many steps as the cohort's clients take together
    server  w <- the model of this client

    The gap between a federated method and this baseline is the cost of leaving the samples at the clients.
    """

    training = "centralised"
    group = "baselines"
    paper = FedAvg.paper  # its section 3 compares with SGD on all samples
    sources = Sources(
        departures=("FedAvg's paper counts SGD by single batches; here a round has a cohort's.",),
        readings=(
            "The cohort of each round says how many steps are taken, but not on whose samples: batches are drawn from "
            "all clients that may take part. The step size is that of the round.",
        ),
    )
