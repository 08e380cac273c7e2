from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.records import Delta, Model, Nothing
from .fedavg import FedAvg
from .fedavgm import Heavy


class FedACG(FedAvg, server=Heavy):
    """Clients start from the model that the server's momentum looks ahead to, and are held near it.

    client  start at w^ = w + lam m, which is what the server sends
            w_i <- w_i - lr (g_i(w_i) + beta (w_i - w^))
    server  m <- lam m + server_lr mean (w_i - w^);   w <- w + m

    beta is the coefficient in the gradient. The penalty of the released code, 1e-3 ||w_i - w^||^2, has no factor 1/2,
    so it corresponds to beta = 2e-3.
    """

    group = "drift correction"
    paper = Citation(
        key="kim2024communication",
        authors="Kim, Geeho and Kim, Jinkyu and Han, Bohyung",
        title="Communication-Efficient Federated Learning with Accelerated Client Gradient",
        venue="CVPR",
        year=2024,
        arxiv="2201.03172",
    )
    sources = Sources(
        grids={"beta": (0.002, 0.01)},
        published={"lam": "0.85 (released code)", "beta": "2e-3 (released code); 0.01 (FedVSSAM)"},
        departures=("The released penalty has no factor 1/2, so its 1e-3 is beta = 2e-3.",),
    )
    lam: float = hyper(0.85, "weight of the old momentum; 0 is FedProx", low=0, high=1)
    beta: float = hyper(2e-3, "weight of the proximal term, per parameter unit", low=0)

    @property
    def penalty(self) -> float:
        return self.beta

    def broadcast(self, server: Heavy) -> Model:
        return Model(server.w + self.lam * server.m)

    def step(self, w: Tensor, client: Nothing, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        return grad(w) + self.beta * (w - down.w), client

    def update(self, server: Heavy, mean: Delta, ctx: Context) -> Heavy:
        m = self.lam * server.m + self.server_lr * mean.delta
        return Heavy(server.w + m, m)
