from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, as_descent_gradient, ascent, hyper
from ..core.records import Delta, Model
from .feddyn import DynamicClient, DynamicRegularised, DynamicServer


class FedSpeed(DynamicRegularised):
    """FedDyn on a mix of the plain and the SAM gradient.

    client  q = (1 - mix) g_i(w_i) + mix g_i(w_i + rho unit(g_i(w_i)))
            w_i <- w_i - lr (q + alpha h_i + alpha (w_i - w));   h_i <- h_i + (w_i - w)
    server  h <- h + S/N mean (w_i - w);   w <- mean w_i + h

    The released code has mix = 1 and the server above. With active_prox_correct the server computes the
    mean of the corrected models over the sampled clients, w <- mean (w_i + h_i), as in the paper.
    """

    group = "flat"
    paper = Citation(
        key="sun2023fedspeed",
        authors="Sun, Yan and Shen, Li and Huang, Tiansheng and Ding, Liang and Tao, Dacheng",
        title="FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy",
        venue="ICLR",
        year=2023,
        arxiv="2302.10429",
    )
    sources = Sources(
        published={"rho": "0.1 (FL-Simulator)", "alpha": "0.1 (FL-Simulator)", "mix": "1 (released code)"},
        departures=(
            "The paper mixes the plain and the SAM gradient; the released code has the SAM gradient alone (mix = 1).",
            "FL-SAM pulls with the norm, not the squared norm. FedLESAM's repository imports a module that it does not "
            "ship.",
            "The released server adds the mean of all clients' h_i; the paper averages corrected "
            "models of the sampled ones (active_prox_correct).",
        ),
        charged=1,
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 is FedDyn", low=0)
    alpha: float = hyper(0.1, "weight of the regulariser, per parameter unit; the paper's 1 / lambda", low=0)
    mix: float = hyper(1.0, "weight of the SAM gradient against the plain one (the paper's a)", low=0, high=1)
    active_prox_correct: bool = hyper(False, "average the corrected models of the sampled clients, as the paper")

    @property
    def penalty(self) -> float:
        return self.alpha

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT

    def step(
        self, w: Tensor, client: DynamicClient, down: Model, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, DynamicClient]:
        return super().step(w, client, down, self._mixed(grad), ctx)

    def finish(self, w: Tensor, client: DynamicClient, down: Model, ctx: Context) -> tuple[Delta, DynamicClient]:
        up, client = super().finish(w, client, down, ctx)
        return Delta(up.delta + client.h) if self.active_prox_correct else up, client

    def update(self, server: DynamicServer, mean: Delta, ctx: Context) -> DynamicServer:
        if self.active_prox_correct:
            return replace(server, w=server.w + mean.delta)
        after: DynamicServer = super().update(server, mean, ctx)
        return after

    def _mixed(self, grad: Oracle) -> Oracle:
        if self.rho == 0 or self.mix == 0:
            return grad

        def q(w: Tensor) -> Tensor:
            g = grad(w)
            sharp = grad(w + ascent(grad, w, g, self.rho))
            return as_descent_gradient(grad, (1 - self.mix) * g + self.mix * sharp)

        return q
