from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from ..core.method import Citation, Context, Method, Oracle, Sources, hyper
from ..core.records import Delta, Model, Record, Vector, mean_of_clients


class DynamicServer(Model):
    h: Vector = mean_of_clients()  # mean of all clients' h_i, in parameter units


class DynamicClient(Record):
    h: Vector  # sum of this client's moves w_i - w so far, in parameter units


class DynamicRegularised(Method, server=DynamicServer, client=DynamicClient, down=Model, up=Delta):
    """The dynamic regulariser that FedDyn and its sharpness-aware descendants share."""

    weights: ClassVar[Literal["uniform", "any"]] = "uniform"

    @property
    @abstractmethod
    def penalty(self) -> float:
        """Weight of the proximal term; the papers call this weight alpha, or 1 / beta."""

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return grad(w) + self.penalty * (client.h + w - down.w), client

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Delta, Any]:
        delta = w - down.w
        return Delta(delta), replace(client, h=client.h + delta)

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        h = server.h + ctx.share * mean.delta
        return replace(server, w=server.w + mean.delta + h, h=h)


class FedDyn(DynamicRegularised):
    """Every client's loss carries a linear and a quadratic term that align its optimum with the global one.

    client  w_i <- w_i - lr (g_i(w_i) + alpha h_i + alpha (w_i - w));   h_i <- h_i + (w_i - w)
    server  h <- h + S/N mean (w_i - w);   w <- mean w_i + h

    h_i is -1/alpha times the paper's dual. A small alpha does not give FedAvg, because the server still adds h.
    """

    group = "drift correction"
    paper = Citation(
        key="acar2021federated",
        authors="Acar, Durmus Alp Emre and Zhao, Yue and Matas, Ramon and Mattina, Matthew and "
        "Whatmough, Paul and Saligrama, Venkatesh",
        title="Federated Learning Based on Dynamic Regularization",
        venue="ICLR",
        year=2021,
        arxiv="2111.04263",
    )
    sources = Sources(
        grids={"alpha": (0.001, 0.01, 0.1)},
        published={
            "alpha": "0.1 (FedSMOO, CIFAR-100 0.01; FedLESAM); 0.01 (FedVSSAM); 0.1, 0.01, 0.001 (FedGF script)"
        },
        departures=(
            "FedLab and FedGF build the penalties from detached parameters: they give no gradient.",
            "FL-SAM pulls with the norm, not the squared norm; FL-bench leaves alpha w out.",
            "FL-Simulator: + alpha w sits in the unclipped weight decay and the rest in the clipped direction "
            '(client.clip_scope = "flsim").',
            "The original scales alpha by mean n / n_i and reports three models; here w is the cloud model.",
        ),
        charged=1,
    )
    alpha: float = hyper(0.1, "weight of the regulariser, per parameter unit; the papers' 1 / beta", low=0)

    @property
    def penalty(self) -> float:
        return self.alpha
