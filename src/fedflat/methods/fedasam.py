from __future__ import annotations

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, adaptive_scale, asam, hyper
from ..core.records import Model, Nothing
from .fedavg import FedAvg


class FedASAM(FedAvg):
    """FedAvg on the adaptive SAM gradient: each weight's size stretches the ball of perturbations.

    client  T = |w_i| + eta on weights, 1 on biases;   e = rho T^2 g_i(w_i) / ||T g_i(w_i)||
            w_i <- w_i - lr g_i(w_i + e)
    server  w <- w + server_lr mean (w_i - w)

    A weight is a parameter whose name contains "weight", as in the released code; the norm is over
    all parameters.
    """

    group = "flat"
    paper = Citation(
        key="caldarola2022improving",
        authors="Caldarola, Debora and Caputo, Barbara and Ciccone, Marco",
        title="Improving Generalization in Federated Learning by Seeking Flat Minima",
        venue="ECCV",
        year=2022,
        arxiv="2203.11834",
    )
    sources = Sources(
        grids={"rho": (0.05, 0.5, 0.7)},
        published={"rho": "0.7, 0.7, 0.05 (FedGF CIFAR-10 by alpha); 0.5 (CIFAR-100)", "eta": "0.2 (FedGF, Caldarola)"},
        departures=("FL-Simulator's adaptive option: T = |w| for all parameters, no eta.",),
        readings=("The paper does not say what T is for biases: 1, as in its code and in FedGF's.",),
        charged=1,
    )
    rho: float = hyper(0.5, "radius in units of the weights' size; 0 is FedAvg", low=0)
    eta: float = hyper(0.2, "added to |w| on weights, in parameter units", low=0)

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT - {"adaptive"}

    def step(self, w: Tensor, client: Nothing, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        T = adaptive_scale(w, self.eta, ctx.is_weight)
        return super().step(w, client, down, asam(grad, self.rho, T), ctx)
