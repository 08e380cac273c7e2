from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.records import Delta, Model, Nothing, Vector, gradient_scale
from .fedavg import FedAvg


class MimeServer(Model):
    m: Vector  # running mean of full gradients, a gradient


class MimeUp(Delta):
    gradient: Vector = gradient_scale()  # grad F_i(w) on all of the client's samples


class MimeLite(FedAvg, server=MimeServer, down=MimeServer, up=MimeUp):
    """Clients step with the server's momentum, which is frozen during the round.

    client  w_i <- w_i - lr ((1 - beta) g_i(w_i) + beta m);   also sends grad F_i(w) at the received w
    server  w <- w + server_lr mean (w_i - w);   m <- (1 - beta) mean grad F_i(w) + beta m
    """

    group = "drift correction"
    paper = Citation(
        key="karimireddy2021breaking",
        authors="Karimireddy, Sai Praneeth and Jaggi, Martin and Kale, Satyen and Mohri, Mehryar and "
        "Reddi, Sashank and Stich, Sebastian and Suresh, Ananda Theertha",
        title="Breaking the Centralized Barrier for Cross-Device Federated Learning",
        venue="NeurIPS",
        year=2021,
        arxiv="2008.03606",
    )
    sources = Sources(
        published={"beta": "0.9 (FedSAM writes the gradient weight 0.1)"},
        departures=(
            "fedjax: d = g + beta m, m <- grad F + beta m, and weights by samples.",
            "The sources at hand give no settings; recalled, not re-read.",
        ),
    )
    beta: float = hyper(0.9, "weight of the old momentum; 0 is FedAvg", low=0, high=1)

    def fresh_weight(self, down: MimeServer) -> float:
        return 1 - self.beta

    def step(self, w: Tensor, client: Nothing, down: MimeServer, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        return (1 - self.beta) * grad(w) + self.beta * down.m, client

    def finish(self, w: Tensor, client: Nothing, down: MimeServer, ctx: Context) -> tuple[MimeUp, Nothing]:
        assert ctx.full_grad is not None, "the engine offers the full gradient"  # noqa: S101
        return MimeUp(w - down.w, ctx.full_grad(down.w)), client

    def update(self, server: MimeServer, mean: MimeUp, ctx: Context) -> MimeServer:
        m = (1 - self.beta) * mean.gradient + self.beta * server.m
        return MimeServer(server.w + self.server_lr * mean.delta, m)
