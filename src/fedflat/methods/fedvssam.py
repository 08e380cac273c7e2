from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, ascent, hyper
from ..core.records import Model, Nothing, Vector
from .fedcm import DirectionServer, MoveAndDirection


class Smoothed(Model):  # w is the paper's theta
    h: Vector  # smoothed global direction, a gradient


class SmoothedDown(Model):
    h: Annotated[Tensor, "d", "mixes_locally"]


class FedVSSAM(DirectionServer, server=Smoothed, down=SmoothedDown):
    """One variance-suppressed direction serves the flatness search, the descent and the server.

    client  a = (1 - gamma_l) h + gamma_l g_i(w_i);   e = rho unit(a)
            w_i <- w_i - lr ((1 - gamma_l) h + gamma_l g_i(w_i + e))
    server  g = mean (w - w_i) / (lr K_i);   h <- (1 - gamma_g) h + gamma_g g;   w <- w - server_lr lr K h

    K_i counts local iterations. In the server's step, lr K g is computed as mean (w - w_i), and the K
    beside the old h is the mean of K_i over the clients. The paper's literal step, server_lr h, is
    server_lr_mode = "absolute". gamma_search and gamma_update replace gamma_l in the search and in the
    update. In each ablation of the paper, one weight is below 1 and the others are 1: the weight below 1
    is gamma_search in LF, gamma_update in LU, and gamma_g in GU.
    """

    group = "flat"
    paper = Citation(
        key="xiao2026fedvssam",
        authors="Xiao, Bingnan and Gao, Yuan and Li, Bingcong and Ni, Wei and Wang, Xin and Quek, Tony Q. S.",
        title="FedVSSAM: Mitigating Flatness Incompatibility in Sharpness-Aware Federated Learning",
        venue="arXiv",
        year=2026,
        arxiv="2605.09144",
    )
    sources = Sources(
        grids={"gamma_l": (0.1, 0.4)},
        published={
            "rho": "0.05 (FedVSSAM)",
            "gamma_l": "0.4 moderate, 0.1 severe skew (FedVSSAM)",
            "gamma_g": "0.6 (FedVSSAM)",
            "server_lr": "0.5 to 4, absolute (FedVSSAM)",
        },
        departures=("No official code. Eq. (16) has the literal server step.",),
        readings=(
            "K counts local iterations. Table 2 calls K epochs, Appendix B iterations; only iterations give the "
            "paper's server rates.",
            "Weight decay, momentum, clipping and a decay of the step size are not stated. Averaging as in FedAvg, "
            'server_lr_mode = "relative", is what makes it FedSAM where all gammas are 1.',
        ),
    )
    rho: float = hyper(0.05, "radius of the perturbation, in parameter units", low=0)
    gamma_l: float = hyper(0.4, "weight of the fresh gradient in local search and update", low=0, high=1, open_low=True)
    gamma_g: float = hyper(0.6, "weight of the fresh mean direction at the server", low=0, high=1, open_low=True)
    gamma_search: float | None = hyper(None, "gamma_l of the search alone", low=0, high=1, open_low=True)
    gamma_update: float | None = hyper(None, "gamma_l of the update alone", low=0, high=1, open_low=True)

    @property
    def search(self) -> float:
        """Weight of the fresh gradient in the search."""
        return self.gamma_l if self.gamma_search is None else self.gamma_search

    @property
    def fresh(self) -> float:
        """Weight of the fresh gradient in the local update."""
        return self.gamma_l if self.gamma_update is None else self.gamma_update

    def fresh_weight(self, down: SmoothedDown) -> float:
        return self.fresh

    @property
    def mixes_locally(self) -> bool:
        """Whether clients need h at all; in the ablation GU, h is not sent."""
        return min(self.search, self.fresh) < 1

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT - {"sigma"}

    def step(
        self, w: Tensor, client: Nothing, down: SmoothedDown, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, Nothing]:
        h = down.h if self.mixes_locally else 0.0
        if self.rho:
            w = w + ascent(grad, w, (1 - self.search) * h + self.search * grad(w), self.rho)
        return (1 - self.fresh) * h + self.fresh * grad(w), client

    def update(self, server: Smoothed, mean: MoveAndDirection, ctx: Context) -> Smoothed:
        old = (1 - self.gamma_g) * server.h
        h = old + self.gamma_g * mean.direction
        step = ctx.lr_sum * old - self.gamma_g * mean.delta if self.server_lr_mode == "relative" else h
        return Smoothed(server.w - self.server_lr * step, h)
