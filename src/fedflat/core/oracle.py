"""The gradient oracle and its transforms.

An oracle maps parameters to the gradient of the task loss on the current minibatch at these parameters.
A sharpness-aware method needs this gradient at other parameters; a transform of the oracle computes it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

Oracle = Callable[[Tensor], Tensor]  # (*clients, d) -> (*clients, d)


class MinibatchOracle(Protocol):
    """The oracle that the engine passes to a step; it knows its batch, which teachers and input gradients need."""

    def __call__(self, w: Tensor) -> Tensor:
        """Return the gradient at `w` (*clients, d)."""

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        """Return the oracle of the loss with a teacher's penalty; see the function `with_teacher`."""

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        """Return the gradient of a teacher's penalty alone; see the function `teacher_gradient`."""

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to `w`, `matrix` and `shift`; see the function `wrt_inputs`."""


EPSILON = 1e-12  # added to a norm before dividing by it


def unit(x: Tensor) -> Tensor:
    """Return `x / ||x||` along the parameter axis, (*clients, d); the zero vector stays zero."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (length + EPSILON)


def shifted(grad: Oracle, e: Tensor) -> Oracle:
    """Return the oracle of the gradient at `w + e`, for a perturbation `e` known beforehand, (*clients, d)."""
    return lambda w: grad(w + e)


def ascent(grad: Oracle, w: Tensor, a: Tensor, rho: float | Tensor, T: Tensor | None = None) -> Tensor:
    """Return the perturbation of `w` along `a` (*clients, d): rho unit(a), or rho T unit(T a) with a scale `T`.

    If `grad`, the step's own oracle, has options of the run's perturbation (see `core.ascent`), they apply.
    """
    optional = getattr(grad, "ascent", None)
    if optional is not None:
        perturbation: Tensor = optional(w, a, rho, T)
        return perturbation
    return rho * unit(a) if T is None else rho * T * unit(T * a)


def sam(grad: Oracle, rho: float | Tensor) -> Oracle:
    """Return the oracle at the first-order worst point of the ball of radius `rho` (Foret et al., 2021, eq. 2).

    With `rho` = 0 this is the plain oracle and costs one gradient, not two; a tensor `rho` is not compared with 0.
    """
    if not isinstance(rho, Tensor) and rho == 0:
        return grad
    return lambda w: grad(w + ascent(grad, w, grad(w), rho))


def asam(grad: Oracle, rho: float, T: Tensor) -> Oracle:
    """Return the oracle at the first-order worst point of the ball ||e / T|| <= rho (Kwon et al., 2021, eq. 3).

    `T` (*clients, d) scales the coordinates; with `rho` = 0 this is the plain oracle and costs one gradient.
    """
    if rho == 0:
        return grad
    return lambda w: grad(w + ascent(grad, w, grad(w), rho, T))


def adaptive_scale(w: Tensor, eta: float, is_weight: Tensor | None) -> Tensor:
    """Return the scale T of `asam` at `w` (*clients, d): |w| + eta on weights, and 1 on other parameters.

    This is the scale of Caldarola et al., 2022. is_weight: (d,) bool; without it, all coordinates are weights.
    """
    return w.abs() + eta if is_weight is None else torch.where(is_weight, w.abs() + eta, 1.0)


def with_teacher(grad: Oracle, e: Tensor, weight: float, tau: float) -> Oracle:
    """Return the oracle of the loss + weight tau^2 KL(softmax(z_e / tau) || softmax(z_w / tau)), batch mean.

    z_w and z_e are the scores at w and at the teacher's parameters `e` (*clients, d), which carry no
    gradient. Apply this function to the step's own oracle, before any other transform.
    """
    return cast(MinibatchOracle, grad).with_teacher(e, weight, tau)


def teacher_gradient(grad: Oracle, w: Tensor, e: Tensor, tau: float) -> Tensor:
    """Return the gradient at `w` of KL(softmax(z_e / tau) || softmax(z_w / tau)), batch mean, without the task loss.

    z_w and z_e are the scores at w and at the teacher's parameters `e` (*clients, d), with the same dropout masks. The
    result is not a descent gradient; a step needs one in addition. Apply this function to the step's own oracle.
    """
    return cast(MinibatchOracle, grad).teacher_gradient(w, e, tau)


def wrt_inputs(grad: Oracle, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of the loss on the samples A x + b with respect to w, `matrix` and `shift`.

    A is `matrix` (*clients, c c), row-major, and acts on the c channels of a sample. b is `shift` (*clients, n), where
    n is the size of a sample. Apply this function to the step's own oracle.
    """
    return cast(MinibatchOracle, grad).wrt_inputs(w, matrix, shift)


@dataclass
class MovingStatistics:
    """The running statistics of a client in training; the first pass of each local step replaces them."""

    current: Tensor  # (s,)


class ObservedOracle:
    """An oracle that passes on the gradients of another oracle, and records their number and the loss in a local step.

    The last gradient that was returned is the step's descent gradient, unless a method calls `as_descent_gradient`.
    The loss comes from the forward pass of the first gradient: at the same point and samples, without a penalty.
    """

    def __init__(self, grad: Oracle, bound: Callable[[Tensor], Tensor] | None = None) -> None:
        """Observe `grad`. bound: clips each gradient with respect to w, (*clients, d), before it is returned."""
        self._grad, self._bound = grad, bound
        self.calls = 0  # gradients so far
        self.loss: Tensor | None = None  # (*clients,), of the first gradient; None if `grad` does not compute it
        self.point: Tensor | None = None  # where the last gradient was taken, (*clients, d)
        self.descent: Tensor | None = None  # the descent gradient, (*clients, d)

    def __call__(self, w: Tensor) -> Tensor:
        """Return the gradient at `w` (*clients, d)."""
        return self._observed(w, self._asked(self._grad, "__call__", "with_loss", w))

    def move_statistics(self, moving: MovingStatistics) -> None:
        """Let the first pass of the step update the client's running statistics in `moving`."""
        if hasattr(self._grad, "with_statistics"):
            self._grad = self._grad.with_statistics(moving)

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        """Return an oracle of the loss with a teacher's penalty; its requests are recorded. See `with_teacher`."""
        taught = with_teacher(self._grad, e, weight, tau)
        return lambda w: self._observed(w, self._asked(taught, "__call__", "with_loss", w))

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        """Return a gradient that is counted but is not the descent gradient; see the function `teacher_gradient`."""
        gradient: Tensor = self._asked(self._grad, "teacher_gradient", "teacher_gradient_with_loss", w, e, tau)
        self.calls += 1
        return gradient if self._bound is None else self._bound(gradient)

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the function `wrt_inputs`; the three together are counted as one gradient."""
        gradients = self._asked(self._grad, "wrt_inputs", "wrt_inputs_with_loss", w, matrix, shift)
        by_w, by_matrix, by_shift = gradients
        return self._observed(w, by_w), by_matrix, by_shift

    def _asked(self, grad: Any, plain: str, with_loss: str, *at: Tensor | float) -> Any:
        """Call the method `plain` of `grad`, and return its result.

        For the first gradient, call the method `with_loss` instead, if `grad` has it, and store the loss.
        """
        if self.calls or not hasattr(grad, with_loss):
            return getattr(grad, plain)(*at)
        self.loss, gradients = getattr(grad, with_loss)(*at)
        return gradients

    def _observed(self, w: Tensor, gradient: Tensor) -> Tensor:
        self.calls += 1
        gradient = gradient if self._bound is None else self._bound(gradient)
        self.point, self.descent = w, gradient
        return gradient


def as_descent_gradient(grad: Oracle, gradient: Tensor) -> Tensor:
    """Record `gradient`, computed from gradients of `grad`, as the step's descent gradient, and return it."""
    inner: Any = grad
    whole = gradient
    while not isinstance(inner, ObservedOracle) and hasattr(inner, "grad"):  # an oracle on a subspace or a part
        whole = inner.whole(whole) if hasattr(inner, "whole") else whole
        inner = inner.grad
    if isinstance(inner, ObservedOracle):
        inner.descent = whole
    return gradient
