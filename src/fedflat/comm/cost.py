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


def vectors(record: type[Record], without: frozenset[str] = frozenset()) -> int:
    """How many fields of a record are as wide as the model; scalars and windows do not count, as in the papers."""
    widths = record.widths(_WIDE, _NarrowWindows())
    return sum(width == _WIDE for name, width in widths.items() if name not in without)


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


_WIDE = 1_000_003  # a model size that no window has


class _NarrowWindows:
    """Stands for a method whose named widths are all 1."""

    def __getattr__(self, name: str) -> int:
        return 1


def _total(record: type[Record], d: int, method: Method) -> int:
    return sum(record.widths(d, method).values())
