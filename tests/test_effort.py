"""The methods that stand for all on the axes of the engines have what they stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedflat.core.local import has_schedule
from fedflat.core.method import Context, Method
from fedflat.core.records import Nothing
from fedflat.core.wrapper import Wrapper
from fedflat.methods import all_methods
from support.effort import COVERING


class Asked:
    """An oracle that keeps what it was asked for."""

    def __init__(self) -> None:
        self.ways: set[str] = set()

    def __call__(self, w: Tensor) -> Tensor:
        return w

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Asked:
        self.ways.add("a teacher")
        return self

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        self.ways.add("a teacher without the task loss")
        return w

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.ways.add("gradients by the inputs")
        return w, matrix, shift


def traits(cls: type[Method]) -> set[str]:
    """What `cls` needs of an engine, found by one step and from its records."""
    method, asked, w = cls().fitted((3, 2, 2)), Asked(), torch.ones(3)
    ways = asked.ways

    def full(w: Tensor) -> Tensor:
        ways.add("the gradient on all samples")
        return w

    down = method.broadcast(method.init_server(w))
    ctx = Context(0, 0.1, 1.0, torch.ones(1), torch.full((1,), 0.1), w > 0, (slice(0, 3),), 1, full)
    d, client = method.step(w, method.init_client(down), down, asked, ctx)  # type: ignore[arg-type]
    method.finish(w - d, client, down, ctx)
    records: tuple[Any, ...] = (cls.server, cls.client, cls.down, cls.up)
    if cls.client is Nothing and set(cls.server.widths(3, method)) == {"w"}:
        ways.add("no state but the model")
    if cls.client.marked("per_round") and cls.mean.marked("uniform_mean"):
        ways.add("a field for one round, a field with equal weights")
    if cls.mean is not cls.up:
        ways.add("the server averages another record than it receives")
    if has_schedule(method):
        ways.add("a step size that changes within the round")
    if cls.served is not Method.served:
        ways.add("the evaluated model is another one than the trained one")
    if isinstance(method, Wrapper) and method.depends_on_rounds:
        ways.add("another method inside it, and a number of planned rounds")
    if any(0 in record.widths(3, method).values() for record in records):
        ways.add("a field whose width depends on an option")
    return ways


def test_each_covering_method_has_what_it_stands_for() -> None:
    for trait, name in COVERING.items():
        assert trait in traits(all_methods()[name]), name
