from __future__ import annotations

from ..core.method import Sources
from .fedavg import FedAvg


class Centralised(FedAvg):
    """SGD on the pooled samples of all clients, with as many gradients as a cohort takes.

    client  one, with all samples: w <- w - lr g(w), in as many steps as the cohort takes together
    server  takes its model

    The gap of a federation to this baseline is the cost of distributed samples.
    """

    training = "centralised"
    paper = FedAvg.paper  # its section 3 compares with SGD on all samples
    sources = Sources(
        departures=("FedAvg's paper counts SGD by single batches; here a round has a cohort's.",),
        readings=(
            "The cohort of each round says how many steps are taken, but not on whose samples: batches are drawn from "
            "all clients that may take part. The step size is that of the round.",
        ),
    )
