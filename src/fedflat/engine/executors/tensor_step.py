"""One local step as a function from tensors to tensors: what a compiler or a CUDA graph can take as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ...core.local import Descent, LocalState, walk
from ...core.method import Context, Method
from ...core.objective import Batch, BatchOracle, Objective
from ...core.records import Record

NUMBERS = ("t", "share", "sampled", "steps", "lr")  # of a step; they change from step to step or round to round


@dataclass(frozen=True)
class StepInputs:
    """What a local step depends on besides the method: walkers, message, batch, and a few numbers."""

    walkers: LocalState
    down: Any
    batch: Batch
    ctx: Context
    descent: Descent

    def tensors(self) -> dict[str, Tensor]:
        """Everything whose values may change, by name."""
        return self.rows() | self.shared()

    def rows(self) -> dict[str, Tensor]:
        """The tensors with a client axis, if there is one."""
        named = {"w": self.walkers.w, "velocity": self.walkers.velocity}
        named |= {f"client.{name}": x for name, x in self.walkers.client.tensors().items()}
        named |= {f"down.{name}": x for name, x in self.down.tensors().items()}
        named |= {f"batch.{f.name}": getattr(self.batch, f.name) for f in fields(self.batch)}
        return {name: x for name, x in named.items() if x is not None}

    def shared(self) -> dict[str, Tensor]:
        """What is the same for all clients. Float64, so that a number keeps the digits that Python gives it."""
        ctx, w = self.ctx, self.walkers.w
        numbers = [ctx.t, ctx.share, ctx.sampled, float(self.walkers.steps), self.descent.lr]
        values = torch.tensor(numbers, dtype=torch.float64)
        shared = {"numbers": values.pin_memory().to(w.device, non_blocking=True) if w.is_cuda else values.to(w.device)}
        return shared if ctx.is_weight is None else shared | {"is_weight": ctx.is_weight}


class TensorStep:
    """The local step of one method on one objective as a function of `StepInputs.tensors()`.

    Numbers become tensors without an axis, so nothing that changes can be taken for a constant. A method that
    needs more in its step than oracle and numbers raises an error here; such a step is not one of tensors.
    """

    def __init__(self, method: Method, objective: Objective, example: StepInputs) -> None:
        """`example` gives the names of the tensors, and what is constant: layers, and how a direction is applied."""
        self._method, self._objective = method, objective
        self._layers, self._descent = example.ctx.layers, example.descent
        self._client, self._down = type(example.walkers.client), type(example.down)
        self.names = list(example.tensors())
        self.gradients = 0  # minibatch gradients of a client that the last call took

    def __call__(self, *values: Tensor) -> list[Tensor]:
        """The walkers' next tensors: w, velocity if there is one, and the fields of the client's record."""
        named = dict(zip(self.names, values, strict=True))
        numbers = dict(zip(NUMBERS, named["numbers"].unbind(), strict=True))
        steps, lr = numbers.pop("steps"), numbers.pop("lr")
        ctx: Any = Context(**numbers, lr=lr, is_weight=named.get("is_weight"), layers=self._layers)  # type: ignore[arg-type]
        at = LocalState(named["w"], _record(self._client, named, "client."), named.get("velocity"), steps)
        batch = Batch(**{f.name: named.get(f"batch.{f.name}") for f in fields(Batch)})  # type: ignore[arg-type]
        self.gradients = 0
        oracle = BatchOracle(self._objective, batch, self._counted)
        descent = replace(self._descent, lr=lr)
        after = walk(self._method, at, _record(self._down, named, "down."), oracle, ctx, descent)
        return _leaves(after)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.gradients += 1
        yield


def next_state(before: LocalState, values: list[Tensor]) -> LocalState:
    """The walkers made of what a `TensorStep` gives."""
    w, *rest = values
    velocity = None if before.velocity is None else rest.pop(0)
    client = type(before.client)(**dict(zip(before.client.tensors(), rest, strict=True)))
    return LocalState(w, client, velocity, before.steps + 1)


def _leaves(walkers: LocalState) -> list[Tensor]:
    velocity = [] if walkers.velocity is None else [walkers.velocity]
    return [walkers.w, *velocity, *walkers.client.tensors().values()]


def _record(kind: Callable[..., Record], named: dict[str, Tensor], prefix: str) -> Any:
    return kind(**{name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)})
