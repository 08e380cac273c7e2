from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from ..core.method import Context, Sources, hyper
from ..core.records import Vector
from .fedswa import Annealed, FedSWA
from .scaffold import Control, Controlled, ControlledDelta, Scaffold


class MovingAverage(Controlled):
    c: Vector  # the paper's m, a moving average of the cohorts' control variates, a gradient


class FedMoSWA(Annealed, Scaffold, server=MovingAverage):
    """FedSWA with Scaffold's correction; the global control variate is a moving average of the received ones.

    client  lr_k = lr (1 - (1 - rho) k / K_i) at local step k = 0, 1, ..., K_i - 1
            w_i <- w_i - lr_k (g_i(w_i) - c_i + m);   c_i <- c_i - m + (w - w_i) / sum_k lr_k
    server  w <- w + server_lr mean (w_i - w);   m <- m + gamma mean (c_i - m)

    Clients send c_i - m. All control variates start at zero. m moves by gamma times the mean of c_i - m over the
    sampled clients; Scaffold's c moves by S/N times the mean change of c_i.
    """

    group = "averaging"
    paper = FedSWA.paper
    sources = Sources(
        grids={"rho": (0.1, 0.2, 0.5, 1.0), "gamma": (0.05, 0.1, 0.2, 0.4)},
        published={**FedSWA.sources.published, "gamma": "0.2 (notes on the paper)"},
        departures=(
            'The first upload divides by K (lr + rho lr) / 2, less than the sum of the step sizes (lr_sum = "ends"), '
            'clips the gradient before the correction (client.clip_scope = "loss_only") and fixes gamma = 0.1.',
            "In both uploads a variate belongs to a worker process, not to a client.",
            "The head has neither the schedule nor alpha, and gamma = 1 in round 0 and 0.4 after it.",
        ),
        readings=FedSWA.sources.readings,
    )
    gamma: float = hyper(0.2, "weight of the new variates in the moving average", low=0, high=1)
    lr_sum: Literal["exact", "ends"] = hyper("exact", "what moves are divided by: sum_k lr_k, or K (lr + rho lr) / 2")

    def finish(self, w: Tensor, client: Control, down: Controlled, ctx: Context) -> tuple[ControlledDelta, Control]:
        ends = ctx.lr * ctx.steps * (1 + self.rho) / 2
        c = client.c - down.c + (down.w - w) / (ends if self.lr_sum == "ends" else ctx.lr_sum)
        return ControlledDelta(w - down.w, c - down.c), replace(client, c=c)

    def update(self, server: Any, mean: ControlledDelta, ctx: Context) -> MovingAverage:
        return MovingAverage(server.w + self.server_lr * mean.delta, server.c + self.gamma * mean.dc)
