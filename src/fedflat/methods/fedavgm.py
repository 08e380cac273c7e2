from __future__ import annotations

from ..core.method import Citation, Context, Sources, hyper
from ..core.records import Delta, Model, Vector
from .fedavg import FedAvg


class Heavy(Model):
    m: Vector  # server momentum, in parameter units


class FedAvgM(FedAvg, server=Heavy):
    """FedAvg with heavy-ball momentum at the server.

    client  w_i <- w_i - lr g_i(w_i)
    server  m <- beta m + mean (w_i - w);   w <- w + server_lr m

    The mean move has no factor 1 - beta.
    """

    group = "server optimisers"
    paper = Citation(
        key="hsu2019measuring",
        authors="Hsu, Tzu-Ming Harry and Qi, Hang and Brown, Matthew",
        title="Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        venue="arXiv",
        year=2019,
        arxiv="1909.06335",
    )
    sources = Sources(
        grids={"beta": (0.1, 0.4, 0.9)},
        published={"beta": "0.1, 0.9 (FedGF); 0.4 (FedACG repository)"},
        departures=("FL-bench steps in the Nesterov form (nesterov = true).",),
    )
    beta: float = hyper(0.9, "weight of the old momentum; 0 is FedAvg", low=0, high=1)
    nesterov: bool = hyper(False, "step along beta m + mean move, the look-ahead form")

    def update(self, server: Heavy, mean: Delta, ctx: Context) -> Heavy:
        m = self.beta * server.m + mean.delta
        step = self.beta * m + mean.delta if self.nesterov else m
        return Heavy(server.w + self.server_lr * step, m)
