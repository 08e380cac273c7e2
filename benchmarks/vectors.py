"""What methods compute beside gradients: their work on vectors as long as the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from fedflat.core.descent import Descent
from fedflat.core.local import LocalResult, local_round
from fedflat.core.method import Context, Method
from fedflat.methods import all_methods
from fedflat.rounds.cost import gradients_per_step

from .implementations import Backprop, Implementation
from .timing import Prepared
from .workloads import Workload

PREFIX = "vectors "  # of the implementations' names
GRADIENT, LR = 1e-3, 0.01  # every entry of the free gradient, and the step size: the values make no difference
STEPS = 5  # local steps in one time, with the start and the end of the client's round


class FreeGradient:
    """An oracle that costs nothing: the same gradient, whatever it is asked."""

    def __init__(self, gradient: Tensor) -> None:
        self._gradient = gradient

    def __call__(self, w: Tensor) -> Tensor:
        return self._gradient

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> FreeGradient:
        """Return this; the teacher costs nothing, too."""
        return self

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        """Return a gradient that costs nothing."""
        return self._gradient

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return gradients by the samples that cost nothing."""
        return self._gradient, matrix, shift


@dataclass(frozen=True)
class VectorWork(Implementation):
    """A client's round of one method without its gradients: seconds per local step."""

    work: Workload
    method: str
    per = "step"

    @property
    def name(self) -> str:
        return PREFIX + self.method

    def prepare(self) -> Prepared:
        method = all_methods()[self.method]().fitted(self.work.shape)
        parameters = list(self.work.module().parameters())
        w = torch.cat([p.detach().flatten() for p in parameters])
        run = client_round(method, w, tuple(tuple(p.shape) for p in parameters))
        return Prepared(run, STEPS, {"gradients per step": gradients_per_step(method), "parameters": len(w)})


def client_round(method: Method, w: Tensor, shapes: tuple[tuple[int, ...], ...]) -> Callable[[], LocalResult]:
    """Return a function that takes `method` through one client's round from `w` (d,), gradients free of charge.

    shapes: those of the model's parameters.
    """
    method = method.on_model(shapes)
    layers = tuple(slice(*ends) for ends in pairwise(accumulate(map(prod, shapes), initial=0)))
    oracle = FreeGradient(torch.full_like(w, GRADIENT))
    down = method.broadcast(method.init_server(w))
    client = method.init_client(down)
    is_weight = torch.ones_like(w, dtype=torch.bool)
    ctx = Context(0, LR, 0.1, is_weight=is_weight, layers=layers, sampled=10, full_grad=oracle)

    def run() -> LocalResult:
        result = local_round(method, down, client, [(oracle, 1)] * STEPS, ctx, Descent(LR))
        method.receive(result.up, replace(ctx, steps=result.steps, lr_sum=result.lr_factors * ctx.lr))
        return result

    return run


def vector_contestants(work: Workload) -> list[Implementation]:
    """Return every method, and one backpropagation to compare them with."""
    return [Backprop(work), *(VectorWork(work, method) for method in all_methods())]
