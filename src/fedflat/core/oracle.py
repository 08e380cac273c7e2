"""The gradient oracle and its transforms.

An oracle maps parameters to the gradient of the task loss on the current minibatch there.
A sharpness-aware method takes that gradient somewhere else, so it is one transform of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Oracle = Callable[[Tensor], Tensor]  # (*clients, d) -> (*clients, d)

EPSILON = 1e-12  # added to a norm before dividing by it


def unit(x: Tensor) -> Tensor:
    """`x / ||x||` along the parameter axis, (*clients, d); the zero vector stays zero."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (length + EPSILON)


def shifted(grad: Oracle, e: Tensor) -> Oracle:
    """The gradient at `w + e` for a perturbation `e` known beforehand, (*clients, d)."""
    return lambda w: grad(w + e)


def sam(grad: Oracle, rho: float) -> Oracle:
    """The gradient at the first-order worst point of the ball of radius `rho` (Foret et al., 2021, eq. 2).

    Radius 0 is the plain oracle and costs one gradient, not two.
    """
    if rho == 0:
        return grad
    return lambda w: grad(w + rho * unit(grad(w)))


def asam(grad: Oracle, rho: float, T: Tensor) -> Oracle:
    """The gradient at the first-order worst point of the ball ||e / T|| <= rho (Kwon et al., 2021, eq. 3).

    `T` (*clients, d) scales the coordinates; radius 0 is the plain oracle and costs one gradient.
    """
    if rho == 0:
        return grad
    return lambda w: grad(w + rho * T * unit(T * grad(w)))
