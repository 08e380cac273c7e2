from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..core.method import ALONG_OTHER, Citation, Context, Method, Oracle, Sources, ascent, hyper, shifted
from ..core.records import Model, Record
from .fedavg import FedAvg


class LesamServer(Model):
    last: Annotated[Tensor, "d", "from_server"]  # the last global move, parameters


class LesamClient(Record):
    w_old: Annotated[Tensor, "d", "from_client"]  # the global model of this client's previous round, parameters


class LocallyEstimated(Method):
    """A mixin that adds the perturbation of FedLESAM to a base method X: class FedLESAM_X(LocallyEstimated, X)."""

    rho: float = hyper(0.01, "radius of the perturbation, in parameter units; about lr / 10 from scratch", low=0)
    direction: Literal["client_old", "server_last"] = hyper(
        "client_old", "the server's move since this client's last round (paper), or its last move (released code)"
    )
    first: Literal["none", "literal_zero"] = hyper(
        "none", "a client's first round: unperturbed (released code), or as if w_old were 0 (pseudo-code)"
    )
    norm: Literal["global", "layer_sum"] = hyper(
        "global", "what the direction is divided by: its norm, or the sum of its layers' norms (released code)"
    )

    @property
    def from_client(self) -> bool:
        """Whether clients remember the model they received last."""
        return self.direction == "client_old"

    @property
    def from_server(self) -> bool:
        """Whether the server sends its last move."""
        return self.direction == "server_last"

    @property
    def perturbation_options(self) -> frozenset[str]:
        """Options of the perturbation; the released code's norm has none."""
        return ALONG_OTHER if self.norm == "global" else frozenset()

    def init_client(self, down: Any) -> Any:
        client = super().init_client(down)
        known = self.from_client and self.first == "none"
        return replace(client, w_old=down.w) if known else client

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        """Take the base method's step on the gradient at w + e."""
        back = -down.last if self.from_server else client.w_old - down.w
        along = ascent(grad, w, back, self.rho) if self.norm == "global" else self.rho * _by_layer_sum(back, ctx)
        return super().step(w, client, down, shifted(grad, along), ctx)  # type: ignore[safe-super]

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        """Call the base method, and record the received model."""
        up, client = super().finish(w, client, down, ctx)  # type: ignore[safe-super]
        return up, replace(client, w_old=down.w) if self.from_client else client

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        """Call the base method, and record the change of the global model as `last`."""
        moved = super().update(server, mean, ctx)  # type: ignore[safe-super]
        return replace(moved, last=moved.w - server.w) if self.from_server else moved


def _by_layer_sum(back: Tensor, ctx: Context) -> Tensor:
    """Return `back` (*clients, d) divided by the sum of its layers' norms."""
    norms = [torch.linalg.vector_norm(back[..., layer], dim=-1, keepdim=True) for layer in ctx.layers]
    total = torch.stack(norms).sum(0)
    return torch.where(total > 0, back / total, 0.0)


class FedLESAM(LocallyEstimated, FedAvg, server=LesamServer, client=LesamClient, down=LesamServer):
    """The perturbation is estimated from the server's move since the client's last round; one gradient a step.

    client  e = rho unit(w_old - w), constant during the round
            w_i <- w_i - lr g_i(w_i + e);   w_old <- w
    server  w <- w + server_lr mean (w_i - w)

    The paper's pseudo-code sums over clients; its section 2.3 and appendix have the mean, as here.
    """

    group = "flat"
    paper = Citation(
        key="fan2024locally",
        authors="Fan, Ziqing and Hu, Shengchao and Yao, Jiangchao and Niu, Gang and Zhang, Ya and "
        "Sugiyama, Masashi and Wang, Yanfeng",
        title="Locally Estimated Global Perturbations are Better than Local Perturbations for "
        "Federated Sharpness-aware Minimization",
        venue="ICML",
        year=2024,
        arxiv="2405.18890",
    )
    sources = Sources(
        grids={"rho": (0.0005, 0.001, 0.005, 0.01, 0.05)},
        published={"rho": "0.01 (FedLESAM, FedVSSAM); 0.05 to 0.0005 (domains)"},
        departures=(
            "The released optimiser indexes the flat update by the number of the layer: it shifts "
            "every parameter by one scalar, 45 to 90 times longer than rho and nearly orthogonal to "
            "the update. Not offered.",
            'It takes the last server move for all clients (direction = "server_last"), which the paper says must '
            "not be sent.",
            'It divides the direction by the sum of its layers\' norms (norm = "layer_sum").',
            'The pseudo-code starts from w_old = 0 (first = "literal_zero") and sums over clients without 1/S.',
            "The README's example has rho = 0.5, the paper 0.01; code for OfficeHome and DomainNet is not released.",
        ),
        charged=1,
    )
