from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from torch import Tensor

from ..core.method import ALONG_GRADIENT, Citation, Context, Oracle, Sources, ascent, hyper, sam, shifted, unit
from ..core.records import Delta, Model, Record, mean_of_clients, per_round, uniform_mean
from .feddyn import DynamicRegularised

AGREED = frozenset({"layers"})  # the server's s has the length rho, as every s_i has


class SmooServer(Model):
    # mean of all clients' h_i, in parameter units
    h: Annotated[Tensor, "d", "dynamic_reg"] = mean_of_clients()
    s: Annotated[Tensor, "d", "sam_correction"]  # global perturbation, ||s|| = rho


class SmooClient(Record):
    h: Annotated[Tensor, "d", "dynamic_reg"]  # sum of this client's moves w_i - w so far, in parameter units
    mu: Annotated[Tensor, "d", "sam_correction"]  # dual variable of the constraint s_i = s, in units of the gradient
    s_i: Annotated[Tensor, "d", "sam_correction"] = per_round()  # the last local perturbation


class SmooDown(Model):
    s: Annotated[Tensor, "d", "sam_correction"]


class SmooUp(Delta):
    s_i: Annotated[Tensor, "d", "sam_correction"] = uniform_mean()  # corrected perturbation alpha mu_i - s_i


class FedSMOO(DynamicRegularised, server=SmooServer, client=SmooClient, down=SmooDown, up=SmooUp):
    """FedDyn on the gradient at a perturbed point; the clients agree on the perturbation.

    client  s_i <- rho unit(alpha (g_i(w_i) - mu_i) - s);   mu_i <- mu_i + (s_i - s) / alpha
            w_i <- w_i - lr (g_i(w_i + s_i) + h_i / beta + (w_i - w) / beta)
            h_i <- h_i + (w_i - w)
    server  s <- rho unit(mean (alpha mu_i - s_i));   h <- h + S/N mean (w_i - w);   w <- mean w_i + h

    mu_i is kept across rounds; the s_i that is sent is the last one of the round. h_i is -beta times
    the paper's dual lambda_i. Without the regulariser the mean of w_i may weight clients by samples; the
    mean in s has equal weights in every run.
    """

    group = "flat"
    paper = Citation(
        key="sun2023dynamic",
        authors="Sun, Yan and Shen, Li and Chen, Shixiang and Ding, Liang and Tao, Dacheng",
        title="Dynamic Regularized Sharpness Aware Minimization in Federated Learning: "
        "Approaching Global Consistency and Smooth Landscape",
        venue="ICML",
        year=2023,
        arxiv="2305.11584",
    )
    sources = Sources(
        grids={"rho": (0.01, 0.1, 1.0), "beta": (1.0, 10.0, 100.0)},
        published={"rho": "0.1 (FedSMOO, FedLESAM, FedVSSAM)", "beta": "10; 100 for CIFAR-100 (FedSMOO)"},
        departures=(
            "FL-Simulator's server normalises mean(mu_i) and calls s_i negligible (s_from_mu_only).",
            "From its upload (6fe98e6, 2023-06-28) until commit 502bec6 (2024-10-26) FL-Simulator cut mu_i and s into "
            "layers without moving the index on (idx += length): every layer read them from the front of the vector. "
            "The paper's numbers may come from that code. Not offered.",
            "Paper: lr decay 0.9995, no clipping, batches of 50, accuracy after 800 rounds; README and code: 0.998, "
            "clipping at norm 10, batches of 25 with 200 clients, best round reported.",
            "Paper: a fixed number of clients in a round; code: each client with a probability (ff.Bernoulli).",
            "FL-SAM pulls with the norm, not the squared norm.",
            "FedGF compares with the variant without regulariser (dynamic_reg = false).",
        ),
        readings=(
            "The paper does not say what s starts from: from zero, as in its code. The s_i that is sent is that of the "
            "last local step, and the new s is used in the next round.",
        ),
        charged=2,
    )
    rho: float = hyper(0.1, "radius of the perturbation (the paper's r), in parameter units; 0 is FedDyn", low=0)
    beta: float = hyper(10.0, "inverse weight of the regulariser, in parameter units", low=0, open_low=True)
    alpha: float = hyper(1.0, "weight of the gradient against s in the search; the paper has 1", low=0, open_low=True)
    dynamic_reg: bool = hyper(True, "keep the regulariser h_i; false is the variant FedGF compares with")
    s_from_mu_only: bool = hyper(False, "send mu_i without the last s_i, as one released code does")
    sam_correction: bool = hyper(True, "correct perturbations by mu_i and s; false perturbs as FedSAM")

    @property
    def penalty(self) -> float:
        return 1 / self.beta if self.dynamic_reg else 0.0

    @property
    def needs_equal_weights(self) -> bool:
        return self.dynamic_reg

    @property
    def perturbation_options(self) -> frozenset[str]:
        return AGREED if self.sam_correction else ALONG_GRADIENT

    def step(
        self, w: Tensor, client: SmooClient, down: SmooDown, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, SmooClient]:
        if not self.sam_correction:
            return self._descend(w, client, down, sam(grad, self.rho), ctx)
        if self.rho == 0:
            return self._descend(w, client, down, grad, ctx)
        s_i = ascent(grad, w, self.alpha * (grad(w) - client.mu) - down.s, self.rho)
        d, client = self._descend(w, client, down, shifted(grad, s_i), ctx)
        return d, replace(client, mu=client.mu + (s_i - down.s) / self.alpha, s_i=s_i)

    def finish(self, w: Tensor, client: SmooClient, down: SmooDown, ctx: Context) -> tuple[SmooUp, SmooClient]:
        delta = w - down.w
        kept = replace(client, h=client.h + delta) if self.dynamic_reg else client
        return SmooUp(delta, self.alpha * client.mu - (0 if self.s_from_mu_only else 1) * client.s_i), kept

    def update(self, server: SmooServer, mean: SmooUp, ctx: Context) -> SmooServer:
        s = self.rho * unit(mean.s_i)
        if not self.dynamic_reg:
            return replace(server, w=server.w + mean.delta, s=s)
        server = super().update(server, mean, ctx)
        return replace(server, s=s)

    def _descend(
        self, w: Tensor, client: SmooClient, down: SmooDown, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, SmooClient]:
        return super().step(w, client, down, grad, ctx) if self.dynamic_reg else (grad(w), client)
