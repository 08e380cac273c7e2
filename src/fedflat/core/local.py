"""The loop of local training, which simulations, ranks and real clients all run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, Literal

import torch
from torch import Tensor

from .method import Context, Method
from .oracle import ObservedOracle, Oracle
from .user_code import check_pair
from .wrapper import chain

WeightDecayScope = Literal["outside", "inside"]
ClipScope = Literal["full", "loss_only", "flsim"]


@dataclass(frozen=True)
class Descent:
    """The local update along a direction d: clip d, add weight decay and momentum, and take the step.

    Without momentum, the next iterate is `w - lr * (clip(d) + weight_decay * w)`. The decay acts at the
    unperturbed iterate and is neither clipped nor part of a perturbation. Momentum starts from zero
    in every round.
    """

    lr: Tensor | float
    weight_decay: float = 0.0
    max_norm: float = inf  # bound on ||d|| over the entire vector
    momentum: float = 0.0
    # outside: decay is added to the direction, as in released code; inside: decay is added to the descent gradient, so
    # a method that mixes this gradient with a momentum scales the decay, too.
    wd_scope: WeightDecayScope = "outside"
    # What is clipped. full: the direction d. loss_only: the descent gradient in d. flsim: as in FL-Simulator, d without
    # the part penalty * w_i of the proximal term.
    clip_scope: ClipScope = "full"

    def __call__(
        self, w: Tensor, d: Tensor, velocity: Tensor | None, parts: DirectionParts, lr_factor: Tensor | float = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """Return the next iterate (*clients, d) and the next velocity (None without momentum).

        `lr_factor` multiplies the step size.
        """
        if self.max_norm != inf:
            d = self._clipped(w, d, parts)
        if self.weight_decay:
            d = d + self.weight_decay * (parts.fresh if self.wd_scope == "inside" else 1.0) * w
        if velocity is not None:
            d = velocity = self.momentum * velocity + d
        lr = self.lr * lr_factor if isinstance(lr_factor, Tensor) or lr_factor != 1 else self.lr
        if isinstance(lr, Tensor):
            return w - lr * d, velocity
        return torch.sub(w, d, alpha=lr), velocity  # one pass over memory instead of two

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
    """The parts of a direction: fresh * gradient + penalty * (w_i - w) + the rest."""

    gradient: Tensor | None = None  # the descent gradient, (*clients, d)
    fresh: Tensor | float = 1.0
    penalty: float = 0.0


@dataclass(frozen=True)
class LocalResult:
    """The result of a round of local training, of one client or of a stack of clients."""

    up: Any  # the record to send
    client: Any  # the record to keep
    w: Tensor  # the local model, (*clients, d)
    steps: Tensor  # local steps taken, (*clients, 1)
    lr_factors: Tensor  # sum of the factors on the step sizes of these steps, (*clients, 1)
    gradients: int  # minibatch gradients that all clients together computed
    loss: Tensor  # mean over steps of the loss at each step's first gradient, (*clients,), float32; see `local_step`


@dataclass(frozen=True)
class LocalState:
    """The state of one client, or of the clients in a stack, after `steps` local steps."""

    w: Tensor  # (*clients, d)
    client: Any  # the records of these clients
    velocity: Tensor | None
    steps: Tensor | int = 0
    gradients: int = 0  # minibatch gradients that each of these clients computed
    loss: Tensor | float = 0.0  # sum over the steps, (*clients,), float64
    # Sum over the steps of the method's `lr_factor`, (*clients, 1); None without a schedule: the sum is then `steps`.
    lr_factors: Tensor | None = None

    def rows(self, which: slice) -> LocalState:
        """Return the state of the clients in the rows `which` of the stack."""
        numbers = {"w": self.w, "velocity": self.velocity, "loss": self.loss, "lr_factors": self.lr_factors}
        parts: dict[str, Any] = {name: x[which] for name, x in numbers.items() if isinstance(x, Tensor)}
        return replace(self, client=self.client.map(lambda x: x[which]), **parts)

    @property
    def clients(self) -> int:
        """The number of clients; 1 for tensors without a client axis."""
        return len(self.w) if self.w.ndim > 1 else 1


# One local step: (method, state, down, oracle, context, descent) -> the next state; `down` has the state's rows.
StepFunction = Callable[[Method, LocalState, Any, Oracle, Context, Descent], LocalState]
# Receives the state before each local step, and the point (*clients, d) where that step took its descent gradient.
Observe = Callable[[LocalState, Tensor | None], None]


def local_step(
    method: Method,
    state: LocalState,
    down: Any,
    grad: Oracle,
    ctx: Context,
    descent: Descent,
    observe: Observe | None = None,
) -> LocalState:
    """Take one local step of every client in `state`.

    The recorded loss comes from the forward pass of the step's first gradient: the batch mean, without a penalty, at
    the point of that gradient. This point is the iterate, unless the method begins with a perturbation that needs no
    gradient. The loss is NaN if the oracle does not compute losses.
    """
    factors = state.steps if state.lr_factors is None else state.lr_factors
    ctx = replace(ctx, steps=state.steps, lr_sum=factors * descent.lr)
    oracle = ObservedOracle(grad)
    found = method.step(state.w, state.client, down, oracle, ctx)
    d, client = check_pair(method, "step", found, (Tensor, method.client))
    if observe is not None:
        observe(state, oracle.point)
    parts = DirectionParts(oracle.descent, method.fresh_weight(down), method.penalty)
    factor = 1.0 if state.lr_factors is None else method.lr_factor(ctx)
    w, velocity = _descended(descent, state, d, parts, factor, method.moving(down))
    loss = state.loss + (nan if oracle.loss is None else oracle.loss)
    after = None if state.lr_factors is None else state.lr_factors + factor
    return LocalState(w, client, velocity, state.steps + 1, state.gradients + oracle.calls, loss, after)


def _descended(
    descent: Descent, state: LocalState, d: Tensor, parts: DirectionParts, factor: Tensor | float, moving: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the next iterate and velocity; only coordinates with `moving` true are decayed, enter norms and change."""
    if moving is None:
        return descent(state.w, d, state.velocity, parts, factor)
    w, velocity = descent(torch.where(moving, state.w, 0.0), d, state.velocity, parts, factor)
    return torch.where(moving, w, state.w), velocity


def local_round(
    method: Method,
    down: Any,
    client: Any,
    steps: Iterable[tuple[Oracle, int]],
    ctx: Context,
    descent: Descent,
    step: StepFunction = local_step,
) -> LocalResult:
    """Train one client (tensors without a client axis), or a stack of clients, for a round.

    `steps` yields `(grad, active)` for each local step. In a stack the clients are sorted by their number
    of steps, most first, and the first `active` clients take this step; `grad` then maps
    `(active, d)` to `(active, d)`. Clients that have taken all their steps leave the stack.
    `step` takes one step; an executor may pass a faster function than `local_step`. `ctx.local_steps` is the number of
    steps that each client will take; methods with a schedule within the round need it.
    """
    w, mine = method.start(down, client), down
    loss = w.new_zeros(w.shape[:-1], dtype=torch.float64)
    factors = w.new_zeros(*w.shape[:-1], 1) if has_schedule(method) else None
    state = LocalState(w, client, torch.zeros_like(w) if descent.momentum else None, loss=loss, lr_factors=factors)
    here = ctx
    done: list[LocalState] = []
    for grad, active in steps:
        if w.ndim > 1 and active < len(state.w):
            done.append(state.rows(slice(active, None)))
            state, mine = state.rows(slice(active)), mine.map(lambda x, active=active: x[:active])
            left = here.local_steps
            here = replace(here, local_steps=left[:active] if isinstance(left, Tensor) else left)
        state = step(method, state, mine, grad, here, descent)
    parts = [state, *reversed(done)]
    state, taken = _gather(parts)
    factors = taken if state.lr_factors is None else state.lr_factors
    ctx = replace(ctx, steps=taken, lr_sum=factors * descent.lr)
    found = method.finish(state.w, state.client, down, ctx)
    up, kept = check_pair(method, "finish", found, (method.up, method.client))
    gradients = sum(part.clients * part.gradients for part in parts)
    # In single precision: executors whose models agree to the last bit then report the same loss.
    return LocalResult(up, kept, state.w, taken, factors, gradients, (state.loss / taken[..., 0]).float())


def has_schedule(method: Method) -> bool:
    """Tell whether `method` changes the step size from local step to local step within a round."""
    return type(chain(method)[-1]).lr_factor is not Method.lr_factor


def lr_factors_of(method: Method, ctx: Context, steps: Tensor) -> Tensor:
    """Compute the sum (1, 1) of the factors on the step size over all local `steps` (1, 1) of a client.

    The sum has the same bits as the client's own sum in `local_round`, so clients need not send it.
    """
    if not has_schedule(method):
        return steps
    total = torch.zeros_like(steps)
    for k in range(int(steps)):
        total = total + method.lr_factor(replace(ctx, steps=k, local_steps=steps))
    return total


def _gather(parts: Sequence[LocalState]) -> tuple[LocalState, Tensor]:
    """Join the parts of a stack; return the stack, and the number of steps that each row took, (*clients, 1)."""
    counts = [part.w.new_full((*part.w.shape[:-1], 1), float(part.steps)) for part in parts]
    if len(parts) == 1:
        return parts[0], counts[0]
    client = parts[0].client.map(lambda *rows: torch.cat(rows), *(part.client for part in parts[1:]))
    loss = torch.cat([torch.as_tensor(part.loss) for part in parts])
    sums = [part.lr_factors for part in parts if part.lr_factors is not None]
    factors = torch.cat(sums) if sums else None
    w = torch.cat([part.w for part in parts])
    return LocalState(w, client, None, loss=loss, lr_factors=factors), torch.cat(counts)
