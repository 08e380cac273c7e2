"""The local loop. There is one; the simulator, the ranks and a real client all run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from .method import Context, Method
from .oracle import Oracle, with_teacher, wrt_inputs

WeightDecayScope = Literal["outside", "inside"]
ClipScope = Literal["full", "loss_only", "flsim"]


@dataclass(frozen=True)
class Descent:
    """What happens to a direction before it moves the model: clip, decay, momentum, step.

    `w - lr * (clip(d) + weight_decay * w)`: the decay acts at the unperturbed iterate and is
    neither clipped nor part of a perturbation. Momentum, if any, starts from zero every round.
    """

    lr: Tensor | float
    weight_decay: float = 0.0
    max_norm: float = inf  # bound on ||d|| over the whole vector
    momentum: float = 0.0
    # outside: decay is added to the direction, as released codes do; inside: to the gradient that is
    # mixed with momentum, so it is scaled like that gradient.
    wd_scope: WeightDecayScope = "outside"
    # What is clipped: all of d; the descent gradient alone; or, as FL-Simulator, all but the half
    # penalty * w_i of the proximal term.
    clip_scope: ClipScope = "full"

    def __call__(
        self, w: Tensor, d: Tensor, velocity: Tensor | None, parts: DirectionParts
    ) -> tuple[Tensor, Tensor | None]:
        """The next iterate (*clients, d) and the next velocity (None without momentum)."""
        if self.max_norm != inf:
            d = self._clipped(w, d, parts)
        if self.weight_decay:
            d = d + self.weight_decay * (parts.fresh if self.wd_scope == "inside" else 1.0) * w
        if velocity is not None:
            d = velocity = self.momentum * velocity + d
        if isinstance(self.lr, Tensor):
            return w - self.lr * d, velocity
        return torch.sub(w, d, alpha=self.lr), velocity  # one pass over memory instead of two

    def _clipped(self, w: Tensor, d: Tensor, parts: DirectionParts) -> Tensor:
        if self.clip_scope == "loss_only" and parts.gradient is not None:
            return d + parts.fresh * (self._clip(parts.gradient) - parts.gradient)
        if self.clip_scope == "flsim":
            return self._clip(d - parts.penalty * w) + parts.penalty * w
        return self._clip(d)

    def _clip(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (self.max_norm / length.clamp(min=self.max_norm))


@dataclass(frozen=True)
class DirectionParts:
    """What a direction consists of: fresh * gradient + penalty * (w_i - w) + the rest."""

    gradient: Tensor | None = None  # the descent gradient, (*clients, d)
    fresh: Tensor | float = 1.0
    penalty: float = 0.0


class _Noting:
    """An oracle that remembers the last gradient it gave: the descent gradient of the step."""

    def __init__(self, grad: Oracle) -> None:
        self._grad = grad
        self.last: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        return self.noted(self._grad(w))

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        taught = with_teacher(self._grad, e, weight, tau)
        return lambda w: self.noted(taught(w))

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_w, by_matrix, by_shift = wrt_inputs(self._grad, w, matrix, shift)
        return self.noted(by_w), by_matrix, by_shift

    def noted(self, gradient: Tensor) -> Tensor:
        """Remember `gradient` as the step's descent gradient."""
        self.last = gradient
        return gradient


@dataclass(frozen=True)
class LocalResult:
    """What one client, or a stack of them, ends a round with."""

    up: Any  # the record to send
    client: Any  # the record to keep
    w: Tensor  # the local model, (*clients, d)
    steps: Tensor  # local steps taken, (*clients, 1)


@dataclass(frozen=True)
class LocalState:
    """One client, or the rows of a stack, that took `steps` local steps so far."""

    w: Tensor  # (*clients, d)
    client: Any  # the records of these clients
    velocity: Tensor | None
    steps: Tensor | int = 0

    def rows(self, which: slice) -> LocalState:
        """Some rows of a stack."""
        velocity = None if self.velocity is None else self.velocity[which]
        return LocalState(self.w[which], self.client.map(lambda x: x[which]), velocity, self.steps)


# One local step of every walker: (method, walkers, down, oracle, context, descent) -> walkers, `down` in their rows.
StepFunction = Callable[[Method, LocalState, Any, Oracle, Context, Descent], LocalState]


def walk(method: Method, at: LocalState, down: Any, grad: Oracle, ctx: Context, descent: Descent) -> LocalState:
    """One local step of every walker."""
    here = replace(ctx, steps=at.steps, lr_sum=at.steps * descent.lr)
    noting = _Noting(grad)
    d, client = method.step(at.w, at.client, down, noting, here)
    parts = DirectionParts(noting.last, method.fresh_weight(down), method.penalty)
    w, velocity = descent(at.w, d, at.velocity, parts)
    return LocalState(w, client, velocity, at.steps + 1)


def local_round(
    method: Method,
    down: Any,
    client: Any,
    steps: Iterable[tuple[Oracle, int]],
    ctx: Context,
    descent: Descent,
    walk: StepFunction = walk,
) -> LocalResult:
    """Run one client (tensors without a client axis), or a stack of clients, through a round.

    `steps` yields `(grad, active)` per local step. In a stack the clients are sorted by their number
    of steps, most first, and `active` is how many of the leading ones take this step; `grad` then
    maps `(active, d)` to `(active, d)`. Clients that are done leave the stack and cost nothing.
    `walk` takes the steps, for engines that know how to take them faster.
    """
    w, mine = method.start(down, client), down
    walkers = LocalState(w, client, torch.zeros_like(w) if descent.momentum else None)
    done: list[LocalState] = []
    for grad, active in steps:
        if w.ndim > 1 and active < len(walkers.w):
            done.append(walkers.rows(slice(active, None)))
            walkers, mine = walkers.rows(slice(active)), mine.map(lambda x, active=active: x[:active])
        walkers = walk(method, walkers, mine, grad, ctx, descent)
    walkers, taken = _gather([walkers, *reversed(done)])
    ctx = replace(ctx, steps=taken, lr_sum=taken * descent.lr)
    up, kept = method.finish(walkers.w, walkers.client, down, ctx)
    return LocalResult(up, kept, walkers.w, taken)


def _gather(parts: Sequence[LocalState]) -> tuple[LocalState, Tensor]:
    """The whole stack again, and the steps each row took, (*clients, 1)."""
    counts = [part.w.new_full((*part.w.shape[:-1], 1), float(part.steps)) for part in parts]
    if len(parts) == 1:
        return parts[0], counts[0]
    client = parts[0].client.map(lambda *rows: torch.cat(rows), *(part.client for part in parts[1:]))
    return LocalState(torch.cat([part.w for part in parts]), client, None), torch.cat(counts)
