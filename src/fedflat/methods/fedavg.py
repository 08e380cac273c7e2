from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ..core.method import Citation, Context, Method, Oracle, Sources, hyper
from ..core.records import Delta, Model


class FedAvg(Method, server=Model, down=Model, up=Delta):
    """Local SGD; the server moves along the mean change of the clients.

    client  w_i <- w_i - lr g_i(w_i)
    server  w <- w + server_lr mean (w_i - w)
    """

    group = "baselines"
    paper = Citation(
        key="mcmahan2017communication",
        authors="McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and Arcas, Blaise Aguera y",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        venue="AISTATS",
        year=2017,
        arxiv="1602.05629",
    )
    sources = Sources(
        published={"server_lr": "1 (all five papers)"},
        departures=(
            "FL-Simulator, FedLESAM: uniform weights, clipping at norm 10; FedGF: weights by samples, no clipping.",
        ),
        charged=1,
    )
    server_lr: float = hyper(1.0, "server step size; 1 is plain averaging", low=0, open_low=True)

    # Records are Any here, because many methods are FedAvg with other records.
    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return grad(w), client

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Delta, Any]:
        return Delta(w - down.w), client

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        return replace(server, w=server.w + self.server_lr * mean.delta)
