"""The local update: how a direction moves the iterate of a client, by SGD or AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from .records import Record, Scalar, Vector

WeightDecayScope = Literal["outside", "inside"]
ClipScope = Literal["full", "loss_only", "flsim", "gradient"]


class Velocity(Record):
    """The state of SGD with momentum."""

    velocity: Vector


class Moments(Record):
    """The state of AdamW."""

    first: Vector  # the exponential mean of the directions
    second: Vector  # that of their squares
    updates: Scalar  # the number of updates so far


@dataclass(frozen=True)
class Descent:
    """The local update along a direction d: clip d, add weight decay and momentum, and take the step.

    Without momentum, the next iterate is `w - lr * (clip(d) + weight_decay * w)`. The decay acts at the
    unperturbed iterate and is neither clipped nor part of a perturbation. Momentum begins with the state that it is
    given: zero, or what the client kept of its last round.
    """

    lr: Tensor | float
    weight_decay: float = 0.0
    max_norm: float = inf  # bound on ||d|| over the entire vector
    momentum: float = 0.0
    # outside: decay is added to the direction, as in released code; inside: decay is added to the descent gradient, so
    # a method that mixes this gradient with a momentum scales the decay, too.
    wd_scope: WeightDecayScope = "outside"
    # What is clipped. full: the direction d. loss_only: the descent gradient in d. flsim: as in FL-Simulator, d without
    # the part penalty * w_i of the proximal term. gradient: each gradient that the method asks for.
    clip_scope: ClipScope = "full"

    @property
    def state(self) -> type[Record] | None:
        """The class of the optimiser's state; None without a state."""
        return Velocity if self.momentum else None

    def start(self, w: Tensor) -> Any:
        """Return the state before the first step, zeros, for models like `w` (*clients, d); None without a state."""
        return None if self.state is None else self.state.zeros(w)

    def __call__(
        self, w: Tensor, d: Tensor, state: Any, parts: DirectionParts, lr_factor: Tensor | float = 1.0
    ) -> tuple[Tensor, Any]:
        """Return the next iterate (*clients, d) and the next state.

        `lr_factor` multiplies the step size.
        """
        if self.max_norm != inf and self.clip_scope != "gradient":
            d = self._clipped(w, d, parts)
        lr = self.lr * lr_factor if isinstance(lr_factor, Tensor) or lr_factor != 1 else self.lr
        return self._moved(w, d, state, parts, lr)

    def bound_on_gradients(self, moving: Tensor | None) -> Callable[[Tensor], Tensor] | None:
        """Return the function that clips a gradient (*clients, d) before the method sees it; None if nothing does.

        moving: the coordinates that move (*clients, d) bool, whose norm is bounded; None stands for all.
        """
        if self.max_norm == inf or self.clip_scope != "gradient":
            return None
        return lambda g: g * self._factor(g if moving is None else torch.where(moving, g, 0.0))

    def _moved(self, w: Tensor, d: Tensor, state: Any, parts: DirectionParts, lr: Tensor | float) -> tuple[Tensor, Any]:
        """Take the step along the clipped direction `d` (*clients, d)."""
        if self.weight_decay:
            d = d + self.weight_decay * (parts.fresh if self.wd_scope == "inside" else 1.0) * w
        if state is not None:
            d = self.momentum * state.velocity + d
            state = Velocity(d)
        if isinstance(lr, Tensor):
            return w - lr * d, state
        return torch.sub(w, d, alpha=lr), state  # one pass over memory instead of two

    def _clipped(self, w: Tensor, d: Tensor, parts: DirectionParts) -> Tensor:
        if self.clip_scope == "loss_only" and parts.gradient is not None:
            return d + parts.fresh * (self._clip(parts.gradient) - parts.gradient)
        if self.clip_scope == "flsim":
            return self._clip(d - parts.penalty * w) + parts.penalty * w
        return self._clip(d)

    def _clip(self, x: Tensor) -> Tensor:
        return x * self._factor(x)

    def _factor(self, x: Tensor) -> Tensor:
        """Return the factor (*clients, 1) that bounds the norm of `x`."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.max_norm / length.clamp(min=self.max_norm)


@dataclass(frozen=True)
class AdamW(Descent):
    """The update of AdamW (Loshchilov and Hutter, ICLR 2019) along a direction d.

    The direction is clipped before it enters the moments; the weight decay is decoupled: w - lr * weight_decay * w.
    """

    beta1: float = 0.9  # of the mean of directions
    beta2: float = 0.999  # of the mean of their squares
    epsilon: float = 1e-8  # added to the root of the second moment

    @property
    def state(self) -> type[Record]:
        """The class of the optimiser's state."""
        return Moments

    def _moved(self, w: Tensor, d: Tensor, state: Any, parts: DirectionParts, lr: Tensor | float) -> tuple[Tensor, Any]:
        updates = state.updates + 1
        first = self.beta1 * state.first + (1 - self.beta1) * d
        second = self.beta2 * state.second + (1 - self.beta2) * d * d
        mean, square = first / (1 - self.beta1**updates), second / (1 - self.beta2**updates)
        step = mean / (square.sqrt() + self.epsilon)
        decayed = w - lr * self.weight_decay * w if self.weight_decay else w
        return decayed - lr * step, Moments(first, second, updates)


@dataclass(frozen=True)
class DirectionParts:
    """The parts of a direction: fresh * gradient + penalty * (w_i - w) + the rest."""

    gradient: Tensor | None = None  # the descent gradient, (*clients, d)
    fresh: Tensor | float = 1.0
    penalty: Tensor | float = 0.0
