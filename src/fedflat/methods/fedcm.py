from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.records import Delta, Model, Vector, gradient_scale
from .fedavg import FedAvg


class MoveAndDirection(Delta):
    direction: Vector = gradient_scale()  # (w - w_i) / (lr K_i); the server makes it from delta and K_i


class DirectionServer(FedAvg, mean=MoveAndDirection):
    """A server that moves along `mean (w - w_i) / (lr K_i)`, a direction on the scale of gradients."""

    server_lr_mode: Literal["relative", "absolute"] = hyper(
        "relative", "relative: the step is server_lr lr K, so 1 is plain averaging; absolute: the papers' literal step"
    )

    def receive(self, up: Any, ctx: Context) -> Any:
        return MoveAndDirection(up.delta, -up.delta / ctx.lr_sum)


class Anchored(Model):
    direction: Vector  # the papers' Delta: the last mean direction, a gradient


class SendsDirection(DirectionServer, server=Anchored, down=Anchored):
    """A server that sends clients its last mean direction."""

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        move = mean.delta if self.server_lr_mode == "relative" else -mean.direction
        return replace(server, w=server.w + self.server_lr * move, direction=mean.direction)


class Momentum(SendsDirection):
    """Client-level momentum: every local step mixes in the last global direction."""

    @property
    @abstractmethod
    def fresh(self) -> float:
        """Weight of the fresh gradient; the global direction has the weight 1 - fresh."""

    def fresh_weight(self, down: Anchored) -> float:
        return self.fresh

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return self.fresh * grad(w) + (1 - self.fresh) * down.direction, client

    def public(self, down: Any, ctx: Context) -> Any:
        return Delta(-(1 - self.fresh) * ctx.lr_sum * down.direction)


class FedCM(Momentum):
    """Local steps mix the fresh gradient with the last global direction Delta.

    client  w_i <- w_i - lr (alpha g_i(w_i) + (1 - alpha) Delta)
    server  Delta <- mean (w - w_i) / (lr K_i);   w <- w + server_lr mean (w_i - w)

    If all K_i are K, the server's step is w <- w - server_lr lr K Delta with the new Delta. Delta starts at
    zero, so local steps in round 0 have the effective step size alpha lr. At a fixed point, weight decay acts
    as if it were decay / alpha.
    """

    group = "drift correction"
    paper = Citation(
        key="xu2021fedcm",
        authors="Xu, Jing and Wang, Sen and Wang, Liwei and Yao, Andrew Chi-Chih",
        title="FedCM: Federated Learning with Client-level Momentum",
        venue="arXiv",
        year=2021,
        arxiv="2106.10874",
    )
    sources = Sources(
        grids={"alpha": (0.05, 0.1, 0.5)},
        published={"alpha": "0.1 (FedSAM, FedSMOO, FedLESAM, FedVSSAM)"},
        departures=(
            "Released code divides by the previous round's rate, which is the same thing.",
            'Weight decay is outside the mix there (client.wd_scope = "outside", the default).',
            "The papers' cost tables charge 2 times FedAvg; it moves 3 vectors against 2.",
        ),
        charged=2,
    )
    alpha: float = hyper(0.1, "weight of the fresh gradient; 1 is FedAvg", low=0, high=1, open_low=True)

    @property
    def fresh(self) -> float:
        return self.alpha
