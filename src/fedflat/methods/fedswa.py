from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Method, Sources, hyper
from .fedavg import FedAvg


class Annealed(Method):
    """A mixin that adds FedSWA's step sizes and longer server step to a base method X: class FedSWA_X(Annealed, X)."""

    rho: float = hyper(0.1, "share of the step size that the schedule of a round falls to; 1 is none", low=0, high=1)
    server_lr: float = hyper(1.5, "server step size, the paper's alpha; 1 is plain averaging", low=0, open_low=True)

    def lr_factor(self, ctx: Context) -> Tensor | float:
        return 1 - (1 - self.rho) * ctx.steps / ctx.local_steps


class FedSWA(Annealed, FedAvg):
    """The step size falls within a round and is reset for the next; the server steps beyond the mean.

    client  lr_k = lr (1 - (1 - rho) k / K_i) at local step k = 0, 1, ..., K_i - 1
            w_i <- w_i - lr_k g_i(w_i)
    server  w <- w + server_lr mean (w_i - w)

    The step size would be rho lr at step K_i, which is not taken. K_i is each client's own number of local steps.
    """

    group = "averaging"
    paper = Citation(
        key="liu2025improving",
        authors="Liu, Junkang and Liu, Yuanyuan and Shang, Fanhua and Liu, Hongying and Liu, Jin and Feng, Wei",
        title="Improving Generalization in Federated Learning with Highly Heterogeneous Data via Momentum-Based "
        "Stochastic Controlled Weight Averaging",
        venue="ICML",
        year=2025,
        arxiv="2507.20016",
    )
    sources = Sources(
        grids={"rho": (0.1, 0.2, 0.5, 1.0)},
        published={"rho": "0.1 (notes on the paper)", "server_lr": "1.5 (notes on the paper)"},
        departures=(
            "The repository's head fixes rho = 0, doubles the step size and has no alpha: FedSWA(rho=0, server_lr=1) "
            "at 2 lr, which falls over the rounds as a cosine. Its flags --rho, --alpha, --lg and --lr_decay change "
            "nothing there. The first upload is as here.",
        ),
        readings=(
            "The paper's body was not at hand: equation (3) and Algorithm 1 are taken from notes of others and a "
            "reimplementation, which agree with each other and with the first upload.",
            "A straggler's schedule spans the steps that it takes in the round, not those that it was asked for.",
        ),
    )
