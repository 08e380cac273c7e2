from __future__ import annotations

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, hyper, sam
from ..core.records import Model, Nothing
from .fedavg import FedAvg


class FedSAM(FedAvg):
    """FedAvg on the SAM gradient.

    client  w_i <- w_i - lr g_i(w_i + rho g_i(w_i) / ||g_i(w_i)||)
    server  w <- w + server_lr mean (w_i - w)

    Both gradients of a step use the same batch. rho is the radius of the perturbation.
    """

    group = "flat"
    paper = Citation(
        key="qu2022generalized",
        authors="Qu, Zhe and Li, Xingyu and Duan, Rui and Liu, Yao and Tang, Bo and Lu, Zhuo",
        title="Generalized Federated Learning via Sharpness Aware Minimization",
        venue="ICML",
        year=2022,
        arxiv="2206.02618",
    )
    sources = Sources(
        grids={"rho": (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)},
        published={
            "rho": "0.5 (FedSAM; best 0.2, 0.5, 0.6); 0.1, 0.1, 0.02 and 0.02, 0.05, 0.05 (FedGF by "
            "alpha); 0.01 (FedSMOO, FedLESAM); 0.1 (FedVSSAM)"
        },
        departures=("The authors released no code.",),
        readings=(
            "Eq. (2) of the paper bounds the squared norm by rho. Eq. (4), and FedSAM in other "
            "papers' code, use rho as the radius.",
            "The paper calls K epochs; other papers' code counts local steps, and so do we.",
        ),
        charged=1,
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 is FedAvg", low=0)

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT

    def step(self, w: Tensor, client: Nothing, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        return super().step(w, client, down, sam(grad, self.rho), ctx)
