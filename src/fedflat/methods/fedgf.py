from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, ascent, hyper, unit
from ..core.records import Delta, Model, Nothing, Scalar, Vector, uniform_mean
from .fedavg import FedAvg


class GFServer(Model):
    last: Vector  # the last global move w^r - w^{r-1}, parameters
    far: Annotated[Tensor, "window"]  # newest last; 1 for a round whose mean drift exceeded the threshold, else 0
    rounds: Scalar  # rounds done so far


class GFDown(Model):
    w_global: Vector  # the model perturbed against the last global move
    c: Scalar  # weight of w_global, in [0, 1]


class MoveAndDrift(Delta):
    drift: Scalar = uniform_mean()  # ||w_i - w||, parameters; the server measures it


class FedGF(FedAvg, server=GFServer, down=GFDown, mean=MoveAndDrift):
    """The gradient is taken between a globally and a locally perturbed model.

    client  z = c w_global + (1 - c) (w_i + rho unit(g_i(w_i)));   w_i <- w_i - lr g_i(z)
    server  w <- w + server_lr mean (w_i - w)
            w_global <- w + rho_g unit(w_before - w);   c <- share of the last `window` rounds
            in which mean ||w_i - w|| > threshold

    Round 0 has no global move, so c = 0 there and clients run FedSAM. Before `window` rounds are done,
    c is the share of the rounds so far. `threshold` (T_D) is a length on the scale of lr K ||g||: the
    paper's 0.2 and 0.3 belong to lr K = 0.08. Set it to about the mean drift in the first rounds with
    c = 0, and watch c, which is reported in every round. A constant c = 1 trains badly if lr K is large;
    with the paper's lr K and one class per client, it is nearly the best (Table 5).
    """

    group = "flat"
    paper = Citation(
        key="lee2024rethinking",
        authors="Lee, Taehwan and Yoon, Sung Whan",
        title="Rethinking the Flat Minima Searching in Federated Learning",
        venue="ICML",
        year=2024,
    )
    sources = Sources(
        grids={"rho": (0.02, 0.05, 0.1), "threshold": (0.1, 0.2, 0.3), "window": (10, 30, 50)},
        published={
            "rho": "0.02, 0.05, 0.1 (FedGF)",
            "rho_g": "as rho (FedGF)",
            "threshold": "0.2 CIFAR-10, 0.3 CIFAR-100 (FedGF), at lr K = 0.08",
            "window": "10, 30, 50 (FedGF); 30 (script)",
        },
        departures=(
            "Round 0 divides by zero in the pseudo-code; the code runs FedSAM.",
            "Eq. (14) weights by all clients' samples; Algorithm 1 and code by the sampled ones'. "
            "Algorithm 1 spans one round more than the window; eq. (16) and code do not.",
            "Its script passes --c_o, its code reads --T_D; the code has no server rate and runs one round more.",
            "The paper's alpha of 0, 0.005 and 10 are concentrations for each class: its files are 0, 0.05 and 100 for "
            "CIFAR-10, and 0, 0.5 and 1000 for CIFAR-100.",
            "Its FedDyn, FedGAMMA and MoFedSAM compute something else than their papers; see there.",
        ),
        readings=(
            "The K local epochs of the paper are 8 local steps: one epoch of 500 samples in batches of 64.",
            "The drift D is a plain mean over the cohort, also where the models are weighted by samples.",
            "While the window fills, the mean is over the rounds so far, as in Algorithm 1; "
            "divide_by_window = true divides by the window, as in eq. (16).",
            "The adaptive c has no middle where lr K is large. In examples/digits.toml lr K is 1.5, and with c = 0 "
            "the mean drift is 1.3 in the first rounds and falls to 0.4. A threshold above 1.3 keeps c = 0 for ever, "
            "which is FedSAM. A threshold below it gives c = 1 in round 1: all local gradients are taken at one point, "
            "the drift grows, and c stays 1. The accuracy after 100 rounds was then 0.33 to 0.92, for thresholds from "
            "1.0 to 1.25 and seeds 0 to 2. So the example fixes c = 0.5, as the paper's Table 5 does.",
            "To see it: `fedflat compare examples/digits.toml "
            """--methods '{"name": "fedgf", "threshold": 1.0}' --out runs/gf`""",
        ),
    )
    rho: float = hyper(0.1, "radius of the local perturbation, in parameter units", low=0)
    rho_g: float | None = hyper(None, "radius of the global perturbation, in parameter units; none is rho", low=0)
    threshold: float = hyper(0.2, "mean drift ||w_i - w|| above which a round counts as far (the paper's T_D)", low=0)
    window: int = hyper(30, "rounds over which c is averaged (the paper's W)", low=1)
    divide_by_window: bool = hyper(False, "divide by the window even while it fills, as eq. (16); else Algorithm 1")
    c: float | None = hyper(None, "fixed weight of the global perturbation; none adapts it", low=0, high=1)

    def broadcast(self, server: GFServer) -> GFDown:
        filled = server.rounds.clamp(self.window if self.divide_by_window else 1, self.window)
        adaptive = server.far.sum(-1, keepdim=True) / filled
        c = adaptive if self.c is None else torch.full_like(adaptive, self.c)
        rho_g = self.rho if self.rho_g is None else self.rho_g
        w_global = server.w - rho_g * unit(server.last)
        return GFDown(server.w, w_global, torch.where(server.rounds > 0, c, 0.0))

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT

    def step(self, w: Tensor, client: Nothing, down: GFDown, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        w_local = w + ascent(grad, w, grad(w), self.rho) if self.rho else w
        z = down.c * down.w_global + (1 - down.c) * w_local
        return grad(z), client

    def receive(self, up: Delta, ctx: Context) -> MoveAndDrift:
        return MoveAndDrift(up.delta, torch.linalg.vector_norm(up.delta, dim=-1, keepdim=True))

    def update(self, server: GFServer, mean: MoveAndDrift, ctx: Context) -> GFServer:
        is_far = (mean.drift > self.threshold).to(mean.drift)
        far = torch.cat([server.far[..., 1:], is_far], dim=-1)
        move = self.server_lr * mean.delta
        return GFServer(server.w + move, move, far, server.rounds + 1)
