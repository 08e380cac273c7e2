from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from ..core.method import ALONG_GRADIENT, ALONG_OTHER, Citation, Context, Oracle, Sources, ascent, hyper, sam, shifted
from ..core.records import Delta, Model, Nothing
from .fedavg import FedAvg
from .fedavgm import Heavy


class Ahead(Model):
    m: Annotated[Tensor, "d", "perturbation=momentum", "rho"]  # server momentum, in parameter units


class FedNSAM(FedAvg, server=Heavy, down=Ahead):
    """The server's Nesterov momentum gives the clients' starting point and the perturbation's direction.

    client  start at w^ = w + gamma m, which is what the server sends;   e = -rho unit(m)
            w_i <- w_i - lr g_i(w_i + e)
    server  m <- gamma m + server_lr mean (w_i - w^);   w <- w + m

    m is a move, so -m points uphill. With perturbation = "local", e is SAM's own perturbation, rho unit(g_i(w_i)).
    The model that is evaluated is w, not w^.
    """

    group = "flat"
    paper = Citation(
        key="liu2025consistency",
        authors="Liu, Junkang and Shang, Fanhua and Tian, Yuxuan and Liu, Hongying and Liu, Yuanyuan",
        title="Consistency of Local and Global Flatness for Federated Learning",
        venue="ACM Multimedia",
        year=2025,
        arxiv="2602.23827",
    )
    sources = Sources(
        grids={"rho": (0.01, 0.05)},
        published={"gamma": "0.85 (released script)", "rho": "0.05 (released script), 0.01 (its README)"},
        departures=(
            "The head's script computes m as 1 + gamma times the mean move, without memory; an earlier version has it.",
            "The first upload is FedAvgM(beta=0.85) with torch 2: its optimiser skips parameters without a gradient.",
            "The optimiser shifts each gradient by gamma m + e instead of starting at w^: the same moves, but for "
            "weight decay, which acts at the shifted models here, as in the script.",
        ),
        readings=(
            "Only the abstract was at hand. It has the momentum give both the extrapolation and the estimate of the "
            'global perturbation: "momentum", which the released optimiser computes. The released script computes '
            '"local".',
        ),
    )
    rho: float = hyper(0.05, "radius of the perturbation, in parameter units", low=0)
    gamma: float = hyper(0.85, "weight of the old momentum", low=0, high=1)
    perturbation: Literal["momentum", "local"] = hyper("momentum", "against the server's momentum, or SAM's own")

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_OTHER if self.perturbation == "momentum" else ALONG_GRADIENT

    def broadcast(self, server: Heavy) -> Ahead:
        return Ahead(server.w + self.gamma * server.m, super().broadcast(server).m)

    def step(self, w: Tensor, client: Nothing, down: Ahead, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        perturbed = shifted(grad, ascent(grad, w, -down.m, self.rho)) if down.m.shape[-1] else sam(grad, self.rho)
        return perturbed(w), client

    def update(self, server: Heavy, mean: Delta, ctx: Context) -> Heavy:
        m = self.gamma * server.m + self.server_lr * mean.delta
        return Heavy(server.w + m, m)
