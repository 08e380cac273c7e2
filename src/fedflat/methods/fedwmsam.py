from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from ..core.method import ALONG_OTHER, Citation, Context, Oracle, Sources, ascent, hyper, shifted, unit
from ..core.records import Delta, Model, Record, Scalar, Vector, gradient_scale, in_range, mean_of_clients
from .fedavg import FedAvg


class WmsamServer(Model):
    m: Vector  # mean direction of the last round, a gradient
    # mean of all clients' control variates, a gradient
    c: Annotated[Tensor, "d", "correction"] = mean_of_clients()
    a: Scalar  # the paper's alpha, weight of the fresh gradient


class WmsamClient(Record):
    c: Annotated[Tensor, "d", "correction"]  # running estimate of this client's gradient


class WmsamUp(Delta):
    likeness: Scalar = in_range(0, 2)  # 1 + cos(w_i - w, m), in [0, 2]; 1 - cos with `rising_weight`; 0 while m = 0


class WmsamMean(WmsamUp):
    direction: Vector = gradient_scale()  # (w - w_i) / (lr K_i); the server makes it from delta and K_i


class FedWMSAM(FedAvg, server=WmsamServer, client=WmsamClient, down=WmsamServer, up=WmsamUp, mean=WmsamMean):
    """Momentum shows where the global model will go; the perturbation points from the iterate to there.

    client  D = m + a / (1 - a) (c - c_i);   e = rho unit(w + j D - w_i) at local step j = 0, 1, ...
            w_i <- w_i - lr (a g_i(w_i + e) + (1 - a) D);   c_i <- c_i - c + (w - w_i) / (lr K_i)
    server  w <- w + server_lr mean (w_i - w);   m <- mean (w - w_i) / (lr K_i)
            c <- c + S/N mean (change of c_i);   a <- (1 - lam) a + lam clip(q, 0.1, 0.9)

    Each step takes one gradient. D points uphill, so the perturbation does, too; at j = 0 it is zero.
    The code here does not divide by 1 - a, so that a = 1 works. In the released code, and here,
    q = mean (1 + cos(w_i - w, m)): m points uphill, so the weight a of the fresh gradient falls where
    clients agree with the momentum. In the paper this weight rises with the agreement, so that the
    momentum dominates in early rounds and the perturbation in late rounds; with `rising_weight`,
    q = mean (1 - cos(w_i - w, m)), as in the paper.
    """

    group = "flat"
    paper = Citation(
        key="li2025fast",
        authors="Li, Tianle and Huang, Yongzhi and Jiang, Linshan and Liu, Chang and Xie, Qipeng and Du, Wenfeng and "
        "Wang, Lu and Wu, Kaishun",
        title="A Fast and Flat Federated Learning Method via Weighted Momentum and Sharpness-Aware Minimization",
        venue="NeurIPS",
        year=2025,
        arxiv="2511.22080",
    )
    sources = Sources(
        published={"rho": "0.01 (FedWMSAM)", "alpha": "0.1 at the start", "lam": "0.01"},
        departures=(
            "Code has FedLESAM's index bug and subtracts, so its perturbation points downhill, "
            "against README and poster.",
            "q: the paper and the poster's formula have the weight of the fresh gradient rise where clients agree with "
            "the momentum; the poster's words and the code, which we follow, have it fall. rising_weight = true is the "
            "paper's.",
            "Code multiplies the momentum by the decay of a rate that has not been decayed.",
            "Code takes q = 0 while there is no momentum, without the 1, and so do we; at a = 1 its a / (1 - a) is not "
            "finite, and ours is.",
            "The poster adds the sum of the changes of all models to c, over lr and the numbers of batches and "
            "clients; code and we have Scaffold's rule.",
        ),
        readings=(
            "The paper's server holds all c_i and sends each client its own D: two vectors down, N at the server. "
            "Here each client keeps its own c_i, and all get the same message with m and c: three vectors down.",
        ),
    )
    weights = "uniform"
    rho: float = hyper(0.01, "radius of the perturbation, in parameter units", low=0)
    alpha: float = hyper(0.1, "weight of the fresh gradient at the start", low=0, high=1, open_low=True)
    lam: float = hyper(0.01, "how fast that weight adapts; 0 keeps it", low=0, high=1)
    flip_sign: bool = hyper(False, "perturb downhill, as the released code does")
    correction: bool = hyper(True, "use the control variates c and c_i")
    rising_weight: bool = hyper(False, "the weight rises where clients agree with the momentum, as in the paper")

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_OTHER

    def init_server(self, w: Tensor) -> WmsamServer:
        start: WmsamServer = super().init_server(w)
        return replace(start, a=start.a + self.alpha)

    def fresh_weight(self, down: WmsamServer) -> Tensor:
        return down.a

    def step(
        self, w: Tensor, client: WmsamClient, down: WmsamServer, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, WmsamClient]:
        pull = (1 - down.a) * down.m  # (1 - a) D
        if self.correction:
            pull = pull + down.a * (down.c - client.c)
        ahead = (1 - down.a) * (down.w - w) + ctx.steps * pull  # (1 - a) (w + j D - w_i)
        e = ascent(grad, w, -ahead if self.flip_sign else ahead, self.rho)
        return down.a * shifted(grad, e)(w) + pull, client

    def finish(self, w: Tensor, client: WmsamClient, down: WmsamServer, ctx: Context) -> tuple[WmsamUp, WmsamClient]:
        delta = w - down.w
        cosine = (unit(delta) * unit(down.m)).sum(-1, keepdim=True)
        likeness = 1 - cosine if self.rising_weight else cosine + 1
        known = (down.m != 0).any(-1, keepdim=True)
        if self.correction:
            client = WmsamClient(client.c - down.c - delta / ctx.lr_sum)
        return WmsamUp(delta, likeness * known), client

    def receive(self, up: WmsamUp, ctx: Context) -> WmsamMean:
        return WmsamMean(up.delta, up.likeness, -up.delta / ctx.lr_sum)

    def update(self, server: WmsamServer, mean: WmsamMean, ctx: Context) -> WmsamServer:
        c = server.c + ctx.share * (mean.direction - server.c) if self.correction else server.c
        a = (1 - self.lam) * server.a + self.lam * mean.likeness.clamp(0.1, 0.9)
        return WmsamServer(server.w + self.server_lr * mean.delta, mean.direction, c, a)
