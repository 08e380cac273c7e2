from __future__ import annotations

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Context, Oracle, Sources, hyper, sam
from ..core.records import Nothing
from .fedcm import Anchored, Momentum
from .fedsam import FedSAM


class MoFedSAM(Momentum):
    """FedCM on the SAM gradient: the perturbation follows the plain local gradient, not the mix.

    client  w_i <- w_i - lr (beta g_i(w_i + rho unit(g_i(w_i))) + (1 - beta) Delta)
    server  Delta <- mean (w - w_i) / (lr K_i);   w <- w + server_lr mean (w_i - w)

    The paper's literal server step, w - server_lr Delta, is server_lr_mode = "absolute".
    """

    group = "flat"
    paper = FedSAM.paper
    sources = Sources(
        grids={"rho": (0.001, 0.01, 0.1, 0.5), "beta": (0.01, 0.1, 0.2, 0.5, 0.9)},
        published={
            "rho": "0.5 (FedSAM); 0.01 (FedSMOO; its README 0.1); 0.1 (FedVSSAM, FedLESAM)",
            "beta": "0.1 (FedSAM, FedVSSAM, FedLESAM); 0.1, 0.9 (FedGF)",
        },
        departures=(
            'The literal server step of the paper is 1 / (lr K) times averaging (server_lr_mode = "absolute"). Its '
            "remark that beta = 1 is FedSAM holds there only for server_lr = lr K.",
            "FL-Simulator averages, as we do; its weight decay is not multiplied by beta, so at the fixed point it "
            'weighs decay / beta (client.wd_scope = "outside", the default).',
            "FedLESAM's repository adds instead of mixing: v = g + (1 - beta) Delta, a 1 / beta times larger step.",
            "FedGF's repository multiplies the momentum by 1 - beta in place at every local step of every client, so "
            "that little of it is left, and takes the literal server step.",
        ),
        charged=2,
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 is FedCM", low=0)
    beta: float = hyper(0.1, "weight of the fresh gradient; 1 is FedSAM", low=0, high=1, open_low=True)

    @property
    def fresh(self) -> float:
        return self.beta

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT

    def step(self, w: Tensor, client: Nothing, down: Anchored, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        return super().step(w, client, down, sam(grad, self.rho), ctx)
