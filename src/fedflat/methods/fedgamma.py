from __future__ import annotations

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, hyper, sam
from .scaffold import Control, Controlled, Scaffold


class FedGAMMA(Scaffold):
    """Scaffold on the SAM gradient; the perturbation does not contain the control variates.

    client  w_i <- w_i - lr (g_i(w_i + rho unit(g_i(w_i))) - c_i + c)
            c_i <- c_i - c + (w - w_i) / (lr K_i)
    server  w <- w + server_lr mean (w_i - w);   c <- c + S/N mean (change of c_i)
    """

    group = "flat"
    paper = Citation(
        key="dai2023fedgamma",
        authors="Dai, Rong and Yang, Xun and Sun, Yan and Shen, Li and Tian, Xinmei and Wang, Meng and Zhang, Yongdong",
        title="FedGAMMA: Federated Learning with Global Sharpness-Aware Minimization",
        venue="IEEE TNNLS",
        year=2023,
    )
    sources = Sources(
        grids={"rho": (0.01, 0.05, 0.1)},
        published={"rho": "0.01 (FL-Simulator); 0.1 (FedLESAM); 0.05 (FedVSSAM)"},
        departures=(
            "FedGF's code divides the mean change of c by N, S times too small.",
            "FedLESAM's repository imports a module that it does not ship; an optimiser in it that is not used divides "
            "by the sum of the layers' norms.",
        ),
        charged=2,
    )
    rho: float = hyper(0.05, "radius of the perturbation, in parameter units; 0 is Scaffold", low=0)

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT

    def step(self, w: Tensor, client: Control, down: Controlled, grad: Oracle, ctx: Context) -> tuple[Tensor, Control]:
        return super().step(w, client, down, sam(grad, self.rho), ctx)
