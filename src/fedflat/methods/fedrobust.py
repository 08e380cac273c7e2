from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Annotated

import torch
from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper, wrt_inputs
from ..core.records import Model, Record
from .fedavg import FedAvg

IMAGE_AXES = 3  # channels, height, width


class Shifted(Record):
    A: Annotated[Tensor, "matrix_size"]  # the paper's Lambda_i, channels x channels, row-major
    b: Annotated[Tensor, "shift_size"]  # the paper's delta_i, in units of the samples


class FedRobust(FedAvg, client=Shifted):
    """Every client trains against the worst affine shift A x + b of its samples.

    client  at one point: w_i <- w_i - lr grad_w l;   A_i <- A_i + eta2 (grad_A l - 2 lam (A_i - I))
            b_i <- b_i + eta2 (grad_b l - 2 lam b_i)
    server  w <- w + server_lr mean (w_i - w)

    All gradients of a step are taken at the same w_i, A_i and b_i. A acts on the channels of a sample and
    starts as I, b has a sample's shape and starts as 0; both are kept across rounds. If `channels` is the
    number of values in a sample and pixels = 1, A mixes all values. The paper that uses this method as a
    baseline gives no settings; the equations here are from memory of the method's own paper.
    """

    group = "drift correction"
    paper = Citation(
        key="reisizadeh2020robust",
        authors="Reisizadeh, Amirhossein and Farnia, Farzan and Pedarsani, Ramtin and Jadbabaie, Ali",
        title="Robust Federated Learning: The Case of Affine Distribution Shifts",
        venue="NeurIPS",
        year=2020,
        arxiv="2006.08907",
    )
    sources = Sources(
        departures=(
            "The sources at hand give neither eta2, lam nor the shape of Lambda for images; recalled, not re-read.",
        )
    )
    eta2: float = hyper(0.01, "step size of the ascent on A and b; 0 is FedAvg", low=0)
    lam: float = hyper(1.0, "penalty on A - I and b", low=0)
    channels: int | None = hyper(None, "channels of a sample; none takes them from the data", low=1)
    pixels: int | None = hyper(None, "numbers in each channel; none takes them from the data", low=1)

    def fitted(self, shape: tuple[int, ...]) -> FedRobust:
        channels = self.channels or (shape[0] if len(shape) == IMAGE_AXES else 1)
        return replace(self, channels=channels, pixels=self.pixels or prod(shape) // channels)

    @property
    def matrix_size(self) -> int:
        """The number of entries of the matrix A: channels squared."""
        return (self.channels or 1) ** 2

    @property
    def shift_size(self) -> int:
        """Numbers in b."""
        return (self.channels or 1) * (self.pixels or 1)

    def init_client(self, down: Model) -> Shifted:
        start: Shifted = super().init_client(down)
        return Shifted(start.A + self._identity(start.A), start.b)

    def step(self, w: Tensor, client: Shifted, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Shifted]:
        by_w, by_A, by_b = wrt_inputs(grad, w, client.A, client.b)
        A = client.A + self.eta2 * (by_A - 2 * self.lam * (client.A - self._identity(client.A)))
        b = client.b + self.eta2 * (by_b - 2 * self.lam * client.b)
        return by_w, Shifted(A, b)

    def _identity(self, like: Tensor) -> Tensor:
        return torch.eye(self.channels or 1, dtype=like.dtype, device=like.device).flatten()
