from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..core.method import Citation, Context, Method, Oracle, Sources, hyper
from ..core.records import Delta, Model, Record, Vector, gradient_scale, mean_of_clients


class Controlled(Model):
    c: Vector = mean_of_clients()  # mean of all clients' control variates, a gradient


class Control(Record):
    c: Vector  # running estimate of this client's gradient


class ControlledDelta(Delta):
    dc: Vector = gradient_scale()  # change of the control variate


class Scaffold(Method, server=Controlled, client=Control, down=Controlled, up=ControlledDelta):
    """Local steps corrected by the difference between a global and a local estimate of the gradient.

    client  w_i <- w_i - lr (g_i(w_i) - c_i + c)
            c_i <- c_i - c + (w - w_i) / (lr K_i)        (option II of the paper)
    server  w <- w + server_lr mean (w_i - w);   c <- c + S/N mean (change of c_i)

    All control variates start at zero. K_i is each client's own number of local steps.
    """

    group = "drift correction"
    paper = Citation(
        key="karimireddy2020scaffold",
        authors="Karimireddy, Sai Praneeth and Kale, Satyen and Mohri, Mehryar and Reddi, Sashank and "
        "Stich, Sebastian and Suresh, Ananda Theertha",
        title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        venue="ICML",
        year=2020,
        arxiv="1910.06378",
    )
    sources = Sources(
        grids={"server_lr": (0.001, 0.01, 0.1, 1.0)},
        published={"server_lr": "1 (FL-Simulator); 0.1, 0.01 (FedGF; its script 0.01, 0.001)"},
        departures=(
            "FL-Simulator takes client 0's number of steps for all, and a fractional one.",
            "FedLESAM's Algorithm 2 prints + lr (c - c_i), c + c_i / K and a sum of moves; its code is right.",
            "FedGF's server rates of 0.1 and 0.01 (0.01 and 0.001 in its script) multiply moves that are averaged "
            "already.",
            "FedGF's FedGAMMA divides the mean change of c by N, S times too small.",
        ),
        charged=2,
    )
    weights = "uniform"
    server_lr: float = hyper(1.0, "server step size; 1 is plain averaging", low=0, open_low=True)

    def step(self, w: Tensor, client: Control, down: Controlled, grad: Oracle, ctx: Context) -> tuple[Tensor, Control]:
        return grad(w) - client.c + down.c, client

    def finish(self, w: Tensor, client: Control, down: Controlled, ctx: Context) -> tuple[ControlledDelta, Control]:
        c = client.c - down.c + (down.w - w) / ctx.lr_sum
        return ControlledDelta(w - down.w, c - client.c), replace(client, c=c)

    def update(self, server: Controlled, mean: ControlledDelta, ctx: Context) -> Controlled:
        return replace(server, w=server.w + self.server_lr * mean.delta, c=server.c + ctx.share * mean.dc)
