from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, ascent, hyper, teacher_gradient, unit
from ..core.records import Model, Nothing
from .fedavg import FedAvg


class FedSOL(FedAvg):
    """FedAvg with a perturbation that moves the predictions away from those of the received model.

    client  p = grad KL(softmax(z_w / tau) || softmax(z_{w_i} / tau));   e = rho L unit(p), and 0 at the first step
            w_i <- w_i - lr g_i(w_i + e)
    server  w <- w + server_lr mean (w_i - w)

    Both gradients of a step use the same batch and dropout masks. L is 1; with adaptive = "layer", L is
    |w_i - w| / ||w_i - w|| in each layer. At the first step w_i = w, so p is zero up to rounding.
    """

    group = "flat"
    paper = Citation(
        key="lee2024fedsol",
        authors="Lee, Gihun and Jeong, Minchan and Kim, Sangmook and Oh, Jaehoon and Yun, Se-Young",
        title="FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
        venue="CVPR",
        year=2024,
        arxiv="2308.12532",
    )
    sources = Sources(
        published={"rho": "1.0 (released code)", "tau": "3 (released code)"},
        departures=(
            "Released code divides the zero gradient of a round's first step by its norm, so that in single precision "
            "rounding noise of full length rho is the perturbation there. Here it is zero.",
            "Its adaptive version normalises along the first axis of each tensor, not over the layer. Not offered.",
            "Code uses momentum 0.9 (client.momentum) and weights by samples.",
            "Its flags perturb_head and perturb_body restrict the perturbation to a part of the model. Not offered.",
        ),
        readings=(
            "The paper's body was not at hand: this is the released code. Which values of rho the paper tries, and "
            "whether its tables use the fixed or the adaptive perturbation, was not read; the default is fixed.",
        ),
    )
    rho: float = hyper(1.0, "radius of the perturbation, in parameter units; 0 is FedAvg", low=0)
    tau: float = hyper(3.0, "temperature of the scores", low=0, open_low=True)
    adaptive: Literal["none", "layer"] = hyper("none", "scale the perturbation by how far each coordinate has moved")

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT - {"sigma"} - ({"adaptive"} if self.adaptive == "layer" else set())

    def step(self, w: Tensor, client: Nothing, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        if self.rho == 0:
            return grad(w), client
        e = ascent(grad, w, teacher_gradient(grad, w, down.w, self.tau), self.rho) * (ctx.steps > 0)
        if self.adaptive == "layer":
            e = e * torch.cat([unit((w - down.w)[..., layer]).abs() for layer in ctx.layers], dim=-1)
        return grad(w + e), client
