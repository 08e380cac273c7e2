from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, hyper, sam, unit
from ..core.records import Delta, Model, Scalar, Vector, uniform_mean
from .feddyn import DynamicClient, DynamicRegularised, DynamicServer


class GlossServer(DynamicServer):  # w is unperturbed; h is -beta times the paper's sigma
    last: Vector  # the paper's Delta: mean (w~ - w_i) of the last round, which points uphill, in parameter units
    rounds: Scalar  # rounds done so far


class MoveTwice(Delta):
    equal: Vector = uniform_mean()  # a second copy of delta


class FedGloSS(DynamicRegularised, server=GlossServer, down=Model, mean=MoveTwice):
    """SAM at the server: clients start from a model perturbed along the last pseudo-gradient.

    server  w~ = w + rho_t unit(Delta)                       (the clients receive w~ alone)
    client  w_i <- w_i - lr (g_i(w_i + rho_l unit(g_i(w_i))) + h_i / beta + (w_i - w~) / beta)
            h_i <- h_i + (w_i - w~)
    server  Delta <- mean (w~ - w_i);   h <- h + S/N mean (w_i - w~);   w <- w - server_lr Delta + h

    The server's step starts from the unperturbed w. rho_t rises from rho_0 to rho over `warm_up` rounds.
    rho_l = 0 is plain SGD at the clients. The mean in Delta may weight clients by samples; the mean in h has
    equal weights in every run.
    """

    group = "flat"
    paper = Citation(
        key="caldarola2025beyond",
        authors="Caldarola, Debora and Cagnasso, Pietro and Caputo, Barbara and Ciccone, Marco",
        title="Beyond Local Sharpness: Communication-Efficient Global Sharpness-aware Minimization "
        "for Federated Learning",
        venue="CVPR",
        year=2025,
        arxiv="2412.03752",
    )
    sources = Sources(
        grids={"rho": (0.01, 0.15), "rho_l": (0.15, 0.2), "beta": (10.0, 100.0)},
        published={
            "rho": "0.15 CIFAR-10; 0.01 CIFAR-100 (FedGloSS)",
            "rho_l": "0.15 CIFAR-10; 0.2 CIFAR-100",
            "beta": "10; 100",
            "rho_0": "0.001",
            "warm_up": "2000; 15000",
        },
        departures=(
            "Code divides the server dual's increment by S once more (sigma_div_active).",
            "Code holds the server's radius at rho_l + (rho - rho_0) / warm_up in rounds 1 to warm_up instead of "
            "raising it, and raises the clients' radius from rho_0 to rho_l (released_schedule).",
            "Code updates dual and anchor every epoch.",
            "Code has the number of clients typed in, 100, and measures eigenvalues on the test set, at the mean of "
            "the last 100 models, with the colour statistics of CIFAR-10 and CIFAR-100 exchanged.",
        ),
        readings=(
            "Round 0 has no pseudo-gradient and would divide by zero: there is no perturbation in it.",
            "The increment of the dual is written as a sum over all clients; only the sampled ones have one.",
        ),
    )
    weights = "any"
    rho: float = hyper(0.15, "radius of the server's perturbation after the warm-up, in parameter units", low=0)
    rho_l: float = hyper(0.15, "radius of the clients' perturbation, in parameter units; 0 is SGD", low=0)
    beta: float = hyper(10.0, "inverse weight of the regulariser, in parameter units", low=0, open_low=True)
    rho_0: float = hyper(0.001, "radius of the server's perturbation in round 0", low=0)
    warm_up: int = hyper(0, "rounds over which the server's radius rises (the paper's T_s)", low=0)
    dynamic_reg: bool = hyper(True, "keep the regulariser h_i")
    released_schedule: bool = hyper(
        False, "warm up as the released code does: the clients' radius, too, and the server's by another rule"
    )
    sigma_div_active: bool = hyper(False, "divide the change of h by S once more, as the released code does")
    server_lr: float = hyper(1.0, "server step size; 1 is plain averaging", low=0, open_low=True)

    @property
    def penalty(self) -> float:
        return 1 / self.beta if self.dynamic_reg else 0.0

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_GRADIENT - {"schedule"} if self._is_as_released else ALONG_GRADIENT

    def broadcast(self, server: GlossServer) -> Model:
        return Model(server.w + self._radius(server.rounds) * unit(server.last))

    def step(
        self, w: Tensor, client: DynamicClient, down: Model, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, DynamicClient]:
        return super().step(w, client, down, sam(grad, self._client_radius(ctx)), ctx)

    def receive(self, up: Delta, ctx: Context) -> MoveTwice:
        return MoveTwice(up.delta, up.delta)

    def update(self, server: GlossServer, mean: MoveTwice, ctx: Context) -> GlossServer:
        scale = ctx.share / ctx.sampled if self.sigma_div_active else ctx.share
        h = server.h + scale * mean.equal if self.dynamic_reg else server.h
        return replace(
            server, w=server.w + self.server_lr * mean.delta + h, h=h, last=-mean.delta, rounds=server.rounds + 1
        )

    @property
    def _is_as_released(self) -> bool:
        """Whether the released code's warm-up applies: that code has none if `warm_up` is 1."""
        return self.released_schedule and self.warm_up > 1

    def _client_radius(self, ctx: Context) -> Tensor | float:
        if not self._is_as_released or not self.rho_l:
            return self.rho_l
        progress: Tensor | float = ctx.t / self.warm_up  # executors may give t as a tensor
        progress = progress.clamp(max=1.0) if isinstance(progress, Tensor) else min(progress, 1.0)
        return self.rho_0 + (self.rho_l - self.rho_0) * progress

    def _radius(self, rounds: Tensor) -> Tensor:
        if self._is_as_released:
            held = self.rho_l + (self.rho - self.rho_0) / self.warm_up
            return held + (self.rho - held) * (rounds > self.warm_up).to(rounds)
        if not self.warm_up or self.released_schedule:
            return torch.full_like(rounds, self.rho)
        return self.rho_0 + (self.rho - self.rho_0) * (rounds / self.warm_up).clamp(max=1.0)
