"""The cost of a method in numbers sent and kept, read off its records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.method import Context, Method
from ..core.records import Record


@dataclass(frozen=True)
class MethodCost:
    """Numbers (not bytes) for a model of d parameters."""

    down: int  # to each sampled client, per round
    up: int  # from each sampled client, per round
    client: int  # kept by each client between its rounds
    server: int  # kept by the server, the model included


def method_cost(method: Method, d: int) -> MethodCost:
    """What `method` sends and keeps for a model of `d` parameters."""
    kept = method.client.widths(d, method)
    passing = method.client.marked("per_round")
    return MethodCost(
        down=_total(method.down, d, method),
        up=_total(method.up, d, method),
        client=sum(width for name, width in kept.items() if name not in passing),
        server=_total(method.server, d, method),
    )


@dataclass(frozen=True)
class VectorCost:
    """The same in model-sized vectors; scalars and short windows do not count, as in the papers."""

    down: int
    up: int
    client: int
    server: int


def vector_cost(method: Method) -> VectorCost:
    """What `method` sends and keeps, in model-sized vectors."""
    cost = method_cost(method, _WIDE)
    return VectorCost(*(round(numbers / _WIDE) for numbers in (cost.down, cost.up, cost.client, cost.server)))


def gradients_per_step(method: Method) -> int:
    """Minibatch gradients that one local step asks for, counted by taking one."""
    w = torch.ones(3)
    down = method.broadcast(method.init_server(w))
    asked = []

    def grad(at: Tensor) -> Tensor:
        asked.append(at)
        return at

    method.step(w, method.init_client(down), down, grad, Context(t=0, lr=0.1, share=1.0, is_weight=w > 0))
    return len(asked)


_WIDE = 10**9  # a model size beside which windows and scalars vanish


def _total(record: type[Record], d: int, method: Method) -> int:
    return sum(record.widths(d, method).values())
