from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..core.citation import Citation
from ..core.hyper import hyper
from ..core.method import Context
from ..core.oracle import Oracle, shifted, unit
from ..core.records import Delta, Model, Record, Vector
from .fedavg import FedAvg


class Remembered(Record):
    w_old: Vector  # the global model this client received last time, parameters


class FedLESAM(FedAvg, client=Remembered):
    """The perturbation is estimated from the server's move since the client's last round: one gradient a step.

    client  e = rho unit(w_old - w), the same for the whole round
            w_i <- w_i - lr g_i(w_i + e);   w_old <- w
    server  w <- w + server_lr mean (w_i - w)

    A client's first round is unperturbed; the paper's pseudo-code starts from w_old = 0, its code does not.
    The pseudo-code sums over clients; its section 2.3 and appendix take the mean, and so do we.
    """

    paper = Citation(
        key="fan2024locally",
        authors="Fan, Ziqing and Hu, Shengchao and Yao, Jiangchao and Niu, Gang and Zhang, Ya and "
        "Sugiyama, Masashi and Wang, Yanfeng",
        title="Locally Estimated Global Perturbations are Better than Local Perturbations for "
        "Federated Sharpness-aware Minimization",
        venue="ICML",
        year=2024,
        arxiv="2405.18890",
    )
    rho: float = hyper(0.01, "radius of the perturbation, in parameter units; about lr / 10 from scratch", low=0)

    def init_client(self, down: Model) -> Remembered:
        return Remembered(w_old=down.w)

    def step(self, w: Tensor, client: Remembered, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        e = self.rho * unit(client.w_old - down.w)
        return super().step(w, client, down, shifted(grad, e), ctx)

    def finish(self, w: Tensor, client: Remembered, down: Model, ctx: Context) -> tuple[Delta, Remembered]:
        up, client = super().finish(w, client, down, ctx)
        return up, replace(client, w_old=down.w)
