from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper, with_teacher
from ..core.records import Delta, Model, Vector
from .feddyn import DynamicClient, DynamicRegularised, DynamicServer
from .fedgloss import MoveTwice


class TaughtServer(DynamicServer):
    e: Vector  # the teacher: running mean of the global models, parameters


class TaughtDown(Model):
    e: Vector  # the teacher


class FedGMT(DynamicRegularised, server=TaughtServer, client=DynamicClient, down=TaughtDown, mean=MoveTwice):
    """Clients are taught by the running mean of the global models, which lies in a flatter region.

    client  w_i <- w_i - lr (grad [CE + gamma tau^2 KL(softmax(z_e / tau) || softmax(z_w / tau))] + h_i / beta)
            h_i <- h_i + (w_i - w)
    server  h <- h + S/N mean (w_i - w);   w <- mean w_i + h;   e <- alpha e + (1 - alpha) w

    There is no proximal term. The mean of w_i may weight clients by samples; the mean in h has equal weights
    in every run. dual_scope = "active" is the paper's server, w <- mean (w_i + h_i) over the sampled clients,
    where w_i and h_i have the same weights. beta = none drops the duals h_i.
    """

    group = "flat"
    paper = Citation(
        key="li2025one",
        authors="Li, Yuhang and Liu, Tong and Cui, Yangguang and Hu, Ming and Li, Xiaoqiang",
        title="One Arrow, Two Hawks: Sharpness-aware Minimization for Federated Learning via Global Model Trajectory",
        venue="ICML",
        year=2025,
    )
    sources = Sources(
        grids={"gamma": (0.5, 1.0, 2.0), "alpha": (0.95, 0.995, 0.998)},
        published={"gamma": "0.5, 1, 2 (FedGMT)", "alpha": "0.95, 0.995, 0.998", "tau": "3", "beta": "10"},
        departures=(
            "Code adds all clients' duals; the paper, by a second source, averages corrected models "
            'of the sampled ones (dual_scope = "active").',
            "Code uses momentum 0.9 (client.momentum) and weights by samples for w, not for the duals.",
            "Its repository (FL-SAM) reports mean and deviation of the last 50 rounds.",
        ),
    )
    weights = "any"
    gamma: float = hyper(1.0, "weight of the teacher", low=0)
    tau: float = hyper(3.0, "temperature of the scores", low=0, open_low=True)
    alpha: float = hyper(0.95, "weight of the old teacher", low=0, high=1)
    beta: float | None = hyper(
        10.0, "inverse weight of the duals, in parameter units; none drops them", low=0, open_low=True
    )
    dual_scope: Literal["all", "active"] = hyper(
        "all", "whose h_i the server adds: all clients' (code) or the sampled ones'"
    )

    @property
    def penalty(self) -> float:
        return 0.0  # duals without a proximal term

    def init_server(self, w: Tensor) -> TaughtServer:
        start: TaughtServer = super().init_server(w)
        return replace(start, e=w)

    def step(
        self, w: Tensor, client: DynamicClient, down: TaughtDown, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, DynamicClient]:
        taught = with_teacher(grad, down.e, self.gamma, self.tau) if self.gamma else grad
        weight = 0.0 if self.beta is None else 1 / self.beta
        return taught(w) + weight * client.h, client

    def finish(self, w: Tensor, client: DynamicClient, down: TaughtDown, ctx: Context) -> tuple[Delta, DynamicClient]:
        up, client = super().finish(w, client, down, ctx)
        corrected = self.dual_scope == "active" and self.beta is not None
        return Delta(up.delta + client.h) if corrected else up, client

    def receive(self, up: Delta, ctx: Context) -> MoveTwice:
        return MoveTwice(up.delta, up.delta)

    def update(self, server: TaughtServer, mean: MoveTwice, ctx: Context) -> TaughtServer:
        adds = self.dual_scope == "all" and self.beta is not None
        h = server.h + ctx.share * mean.equal if adds else server.h
        w = server.w + mean.delta + h
        return TaughtServer(w, h, self.alpha * server.e + (1 - self.alpha) * w)
