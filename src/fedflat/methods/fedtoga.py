from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from torch import Tensor

from ..core.method import ALONG_GRADIENT, ALONG_OTHER, Citation, Context, Oracle, Sources, ascent, hyper
from ..core.records import Delta, Model, Vector, gradient_scale, per_round
from .feddyn import DynamicClient, DynamicRegularised, DynamicServer


class TogaServer(DynamicServer):
    direction: Vector  # Delta: the last mean update, uphill; in parameters per step, or a gradient (global_update)


class TogaClient(DynamicClient):
    last: Annotated[Tensor, "d", "remembers"] = per_round()  # gradient of the last step, at its perturbed point


class TogaDown(Model):
    direction: Annotated[Tensor, "d", "leans"]  # Delta, the last mean update


class TogaMean(Delta):
    per_step: Annotated[Tensor, "d", "global_update=step"]  # (w - w_i) / K_i, parameters per step
    gradient: Annotated[Tensor, "d", "global_update=gradient"] = gradient_scale()  # (w - w_i) / sum of step sizes


class FedTOGA(DynamicRegularised, server=TogaServer, client=TogaClient, down=TogaDown, up=Delta, mean=TogaMean):
    """FedDyn whose perturbation and regulariser both lean on the last global update.

    client  a = g_i(w_i) + last + kappa Delta;   last <- g_i(w_i + rho unit(a))
            w_i <- w_i - lr (last + alpha (h_i + w_i - w) + beta Delta);   h_i <- h_i + (w_i - w)
    server  Delta <- mean (w - w_i) / K_i;   h <- h + S/N mean (w_i - w);   w <- mean w_i + h

    last starts each round at zero. perturbation = "local" leaves last out of a; "neighbour" leaves g_i(w_i) out, so
    that a step takes one gradient. global_update = "gradient" divides by the sum of the client's step sizes instead.
    """

    group = "flat"
    paper = Citation(
        key="li2024neighborhood",
        authors="Li, Boyuan and Peng, Zihao and Li, Yafei and Xu, Mingliang and Chen, Shengbo and Ji, Baofeng and "
        "Shen, Cong",
        title="Neighborhood and Global Perturbations Supported SAM in Federated Learning: "
        "From Local Tweaks To Global Awareness",
        venue="arXiv",
        year=2024,
        arxiv="2408.14144",
    )
    sources = Sources(
        published={
            "rho": "0.1 (RFL-NLCP)",
            "kappa": "1 (RFL-NLCP, fixed)",
            "beta": "0.9 (RFL-NLCP)",
            "alpha": "0.1 (RFL-NLCP)",
        },
        departures=(
            "No code of the authors was found. RFL-NLCP, a third party's simulator, has the method as a baseline.",
            "RFL-NLCP's client gives h_i - w to the perturbation in the place of Delta, so that the gradient is taken "
            "along g + last + h_i - w.",
            "With torch 2, RFL-NLCP's last gradient is the tensor to which the regulariser is added and which is then "
            "clipped: the next step sees the whole direction in the place of the gradient. Ours is the gradient.",
            "RFL-NLCP divides by epochs times samples / batch size of the first client, which need not be a whole "
            "number of steps; ours divides by each client's own K_i.",
        ),
        readings=(
            "The body of the paper was not at hand. A public review quotes the direction of the perturbation as "
            'g + kappa Delta, as g + last + kappa Delta, and as "g [last]". The default "both" is RFL-NLCP\'s sum; '
            'we read "local" as the plain method, and "neighbour" as the approximation that saves a gradient.',
            "The review compares Delta with FedCM's, which is a gradient; RFL-NLCP does not divide by the step size, "
            'and its beta = 0.9 belongs to that scale. With "gradient" a steady Delta makes steps up to 1 / (1 - beta) '
            "times longer.",
            "Equal weights, as the code; last is zero at the start of every round, as RFL-NLCP's optimiser is new in "
            "every round.",
        ),
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 leaves it out", low=0)
    kappa: float = hyper(1.0, "weight of the last global update in the perturbation's direction", low=0)
    beta: float = hyper(0.9, "weight of the last global update in the regulariser", low=0)
    alpha: float = hyper(0.1, "weight of the regulariser, per parameter unit", low=0)
    perturbation: Literal["both", "local", "neighbour"] = hyper(
        "both",
        "gradients in the perturbation's direction: local: the step's; neighbour: the last step's; both: their sum",
    )
    global_update: Literal["step", "gradient"] = hyper(
        "step", "scale of the last global update: step: parameters per local step; gradient: divided by the step size"
    )

    @property
    def penalty(self) -> float:
        return self.alpha

    @property
    def perturbation_options(self) -> frozenset[str]:
        return ALONG_OTHER if self.perturbation == "neighbour" else ALONG_GRADIENT - {"sigma"}

    @property
    def remembers(self) -> bool:
        """Whether a client needs the gradient of its last step."""
        return self.rho > 0 and self.perturbation != "local"

    @property
    def leans(self) -> bool:
        """Whether a client needs the last global update."""
        return self.beta > 0 or (self.rho > 0 and self.kappa > 0)

    def step(
        self, w: Tensor, client: TogaClient, down: TogaDown, grad: Oracle, ctx: Context
    ) -> tuple[Tensor, TogaClient]:
        g = grad(w + ascent(grad, w, self._direction(w, client, down, grad), self.rho)) if self.rho else grad(w)
        d, client = super().step(w, client, down, lambda _: g, ctx)
        lean = self.beta * down.direction if self.beta else 0
        return d + lean, replace(client, last=g) if self.remembers else client

    def receive(self, up: Delta, ctx: Context) -> TogaMean:
        widths = self.mean.widths(up.delta.shape[-1], self)
        per_step, gradient = -up.delta / ctx.steps, -up.delta / ctx.lr_sum
        return TogaMean(up.delta, per_step[..., : widths["per_step"]], gradient[..., : widths["gradient"]])

    def update(self, server: TogaServer, mean: TogaMean, ctx: Context) -> TogaServer:
        after: TogaServer = super().update(server, mean, ctx)
        return replace(after, direction=mean.per_step if self.global_update == "step" else mean.gradient)

    def _direction(self, w: Tensor, client: TogaClient, down: TogaDown, grad: Oracle) -> Tensor:
        """Return the direction of the perturbation."""
        lean = self.kappa * down.direction if self.kappa else 0
        if self.perturbation == "neighbour":
            return client.last + lean
        return grad(w) + client.last + lean if self.perturbation == "both" else grad(w) + lean
