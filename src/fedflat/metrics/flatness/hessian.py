"""Products of the loss Hessian with a vector, by double backward on the flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...core.objective import Batch, Objective


def hessian_product(objective: Objective, w: Tensor, batch: Batch) -> Callable[[Tensor], Tensor]:
    """v -> H v at `w` (d,), H the Hessian of the mean loss on `batch`.

    Fused attention has no second derivative, so attention runs its plain kernel here.
    """
    w = w.detach().requires_grad_()
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        gradient = torch.autograd.grad(objective.loss(w, batch), w, create_graph=True)[0]

    def product(v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            result: Tensor = torch.autograd.grad(gradient, w, v, retain_graph=True)[0]
        return result

    return product
