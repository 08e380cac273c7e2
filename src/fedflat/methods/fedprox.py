from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.records import Model, Nothing
from .fedavg import FedAvg


class FedProx(FedAvg):
    """Every client's loss carries mu/2 ||w_i - w||^2, which holds it near the model it received.

    client  w_i <- w_i - lr (g_i(w_i) + mu (w_i - w))
    server  w <- w + server_lr mean (w_i - w)
    """

    group = "drift correction"
    paper = Citation(
        key="li2020federated",
        authors="Li, Tian and Sahu, Anit Kumar and Zaheer, Manzil and Sanjabi, Maziar and Talwalkar, Ameet and "
        "Smith, Virginia",
        title="Federated Optimization in Heterogeneous Networks",
        venue="MLSys",
        year=2020,
        arxiv="1812.06127",
    )
    sources = Sources(
        grids={"mu": (0.001, 0.01, 0.1, 1.0)},
        published={"mu": "0.1, 1 (FedGF; its script 0.01, 0.001); 0.1 (FedVSSAM); 0.1, 0.01 (FL-Simulator)"},
        departures=(
            "FL-Simulator: + mu w sits in the unclipped weight decay and - mu w^t in the clipped "
            "direction, so the halves no longer cancel when clipping is active (client.clip_scope = "
            '"flsim").',
            "FedSOL's repository takes the weight from its setting rho.",
        ),
        charged=1,
    )
    mu: float = hyper(0.1, "weight of the proximal term, per parameter unit; 0 is FedAvg", low=0)

    @property
    def penalty(self) -> float:
        return self.mu

    def step(self, w: Tensor, client: Nothing, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        return grad(w) + self.mu * (w - down.w), client
