"""The loop of local training, which simulations, ranks and real clients all run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import torch
from torch import Tensor

from .descent import Descent, DirectionParts
from .kept_optimizer import keep_state, take_state
from .method import Context, Method
from .oracle import ObservedOracle, Oracle
from .own_model import own_field, own_step
from .user_code import check_pair
from .wrapper import chain


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
    optimizer: Any  # the state of the local optimiser, a record; None for an optimiser without state
    steps: Tensor | int = 0
    gradients: int = 0  # minibatch gradients that each of these clients computed
    loss: Tensor | float = 0.0  # sum over the steps, (*clients,), float64
    # Sum over the steps of the method's `lr_factor`, (*clients, 1); None without a schedule: the sum is then `steps`.
    lr_factors: Tensor | None = None
    own_optimizer: Any = None  # `optimizer` of the clients' own models, if they train any

    def rows(self, which: slice) -> LocalState:
        """Return the state of the clients in the rows `which` of the stack."""
        numbers = {"w": self.w, "loss": self.loss, "lr_factors": self.lr_factors}
        parts: dict[str, Any] = {name: x[which] for name, x in numbers.items() if isinstance(x, Tensor)}
        records = {"client": self.client, "optimizer": self.optimizer, "own_optimizer": self.own_optimizer}
        parts |= {name: record and record.map(lambda x: x[which]) for name, record in records.items()}
        return replace(self, **parts)

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
    moving = method.moving(down, ctx)
    oracle = ObservedOracle(grad, descent.bound_on_gradients(moving))
    found = method.step(state.w, state.client, down, oracle, ctx)
    d, client = check_pair(method, "step", found, (Tensor, method.client))
    if observe is not None:
        observe(state, oracle.point)
    parts = DirectionParts(oracle.descent, method.fresh_weight(down), method.penalty)
    factor = 1.0 if state.lr_factors is None else method.lr_factor(ctx)
    w, optimizer = _descended(descent, state, d, parts, factor, moving)
    client, own = own_step(method, client, state.own_optimizer, down, oracle, ctx, descent, factor)
    loss = state.loss + (nan if oracle.loss is None else oracle.loss)
    after = None if state.lr_factors is None else state.lr_factors + factor
    return LocalState(w, client, optimizer, state.steps + 1, state.gradients + oracle.calls, loss, after, own)


def _descended(
    descent: Descent, state: LocalState, d: Tensor, parts: DirectionParts, factor: Tensor | float, moving: Tensor | None
) -> tuple[Tensor, Any]:
    """Return the next iterate and optimiser state; only coordinates with `moving` true enter norms and change."""
    if moving is None:
        return descent(state.w, d, state.optimizer, parts, factor)
    gradient = None if parts.gradient is None else torch.where(moving, parts.gradient, 0.0)
    w, d = torch.where(moving, state.w, 0.0), torch.where(moving, d, 0.0)
    w, after = descent(w, d, state.optimizer, replace(parts, gradient=gradient), factor)
    if after is not None:
        width = moving.shape[-1]
        after = after.map(lambda x, y: torch.where(moving, x, y) if x.shape[-1] == width else x, state.optimizer)
    return torch.where(moving, w, state.w), after


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
    optimizer, client = take_state(method, client, descent, w)
    own = descent.start(w) if own_field(method) else None
    state = LocalState(w, client, optimizer, loss=loss, lr_factors=factors, own_optimizer=own)
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
    kept = keep_state(method, kept, state.optimizer)
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
    client, optimizer, own = (
        first and first.map(lambda *rows: torch.cat(rows), *others)
        for first, *others in zip(*((part.client, part.optimizer, part.own_optimizer) for part in parts), strict=True)
    )
    loss = torch.cat([torch.as_tensor(part.loss) for part in parts])
    sums = [part.lr_factors for part in parts if part.lr_factors is not None]
    factors = torch.cat(sums) if sums else None
    w = torch.cat([part.w for part in parts])
    return LocalState(w, client, optimizer, loss=loss, lr_factors=factors, own_optimizer=own), torch.cat(counts)
