"""What every method promises to whatever runs it: `CONTRACT` has a check for each promise, a function of the method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from functools import partial
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor

from fedflat.core.local import Descent, local_round
from fedflat.core.method import Context, Method
from fedflat.core.records import Record

D, CLIENTS = 11, 4
STEPS = (5, 3, 3, 1)  # uneven, most first


def target(clients: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(clients, D, dtype=dtype, generator=torch.Generator().manual_seed(2))


@dataclass(frozen=True)
class ContractOracle:
    """A non-quadratic loss for each row of `b`, with everything that an engine's oracle can do."""

    b: Tensor
    k: int
    e: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        taught = 0.0 if self.e is None else w - self.e
        return torch.tanh(w - self.b) + 0.1 * (self.k + 1) * w + taught

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> ContractOracle:
        return replace(self, e=e)

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self(w), torch.tanh(matrix), torch.tanh(shift + self.b[..., :1])


def oracles(b: Tensor):
    """One oracle per local step, for the clients that still walk."""
    for k in range(max(STEPS)):
        active = sum(n > k for n in STEPS) if b.ndim > 1 else 1
        yield ContractOracle(b[:active] if b.ndim > 1 else b, k), active


def context(**changes: Any) -> Context:
    model = {"is_weight": torch.arange(D) < 8, "layers": (slice(0, 8), slice(8, D)), "full_grad": torch.tanh}
    return Context(**{"t": 1, "lr": 0.1, "share": 0.5, "sampled": CLIENTS} | model | changes)


def states(method: Method, dtype: torch.dtype = torch.float64):
    """A server a few rounds in, its message stacked for all clients, and clients with some history."""
    server = method.init_server(torch.linspace(-1, 1, D, dtype=dtype))
    down = method.broadcast(server).map(lambda x: x.expand(CLIENTS, -1))
    client = method.init_client(down)
    for t in range(3):
        result = local_round(method, down, client, oracles(target(CLIENTS, dtype)), context(t=t), Descent(0.1))
        means = context(t=t, steps=result.steps.mean(0), lr_sum=result.steps.mean(0) * 0.1)
        received = method.receive(result.up, context(t=t, steps=result.steps, lr_sum=result.steps * 0.1))
        server = method.update(server, received.map(lambda x: x.mean(0)), means)
        down, client = method.broadcast(server).map(lambda x: x.expand(CLIENTS, -1)), result.client
    return server, down, client


def assert_shape(record: Record, kind: type[Record], method: Method, lead: tuple[int, ...], dtype: torch.dtype) -> None:
    assert type(record) is kind
    for name, width in kind.widths(D, method).items():
        tensor = getattr(record, name)
        assert tensor.shape == (*lead, width), name
        assert tensor.dtype == dtype, name


def shapes_and_dtypes_are_as_declared(method: Method, dtype: torch.dtype) -> None:
    server, down, client = states(method, dtype)
    result = local_round(method, down, client, oracles(target(CLIENTS, dtype)), context(), Descent(0.1))
    assert_shape(server, method.server, method, (), dtype)
    assert_shape(down, method.down, method, (CLIENTS,), dtype)
    assert_shape(result.client, method.client, method, (CLIENTS,), dtype)
    assert_shape(result.up, method.up, method, (CLIENTS,), dtype)
    received = method.receive(result.up, context(steps=result.steps, lr_sum=result.steps * 0.1))
    assert_shape(received, method.mean, method, (CLIENTS,), dtype)


def a_stack_is_its_clients_one_by_one(method: Method, momentum: float) -> None:
    """With uneven steps, clipping, decay and momentum; also: a client's result does not depend on its neighbours."""
    _, down, client = states(method)
    b, descent = target(CLIENTS, torch.float64), Descent(0.1, weight_decay=0.01, max_norm=1.5, momentum=momentum)
    stacked = local_round(method, down, client, oracles(b), context(), descent)
    for i, steps in enumerate(STEPS):
        mine = down.map(lambda x, i=i: x[i]), client.map(lambda x, i=i: x[i])
        alone = local_round(method, *mine, list(oracles(b[i]))[:steps], context(), descent)
        assert stacked.steps[i] == alone.steps == steps
        for side in ("up", "client"):
            for name, tensor in getattr(alone, side).tensors().items():
                torch.testing.assert_close(getattr(getattr(stacked, side), name)[i], tensor, rtol=0, atol=1e-13)


def nothing_is_written_in_place(method: Method) -> None:
    server, down, client = states(method)
    before = [x.clone() for record in (server, down, client) for x in record.tensors().values()]
    result = local_round(method, down, client, oracles(target(CLIENTS, torch.float64)), context(), Descent(0.1))
    sent = [x.clone() for x in result.up.tensors().values()]
    means = context(steps=result.steps.mean(0), lr_sum=result.steps.mean(0) * 0.1)
    received = method.receive(result.up, context(steps=result.steps, lr_sum=result.steps * 0.1))
    method.update(server, received.map(lambda x: x.mean(0)), means)
    after = [x for record in (server, down, client) for x in record.tensors().values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(sent, result.up.tensors().values(), strict=True))


def hyper_parameters_are_frozen_and_checked(method: Method) -> None:
    with pytest.raises(FrozenInstanceError):
        method.server_lr = 3.0  # type: ignore[misc]
    for f in fields(type(method)):
        name, low = f.name, f.metadata["interval"].low
        if low > -float("inf"):
            with pytest.raises(ValueError, match=rf"{type(method).__name__}\.{name} must be .*, got {low - 1}"):
                type(method)(**{name: low - 1})


def annotations_of_hooks_are_the_class_line(method: Method) -> None:
    """A hook annotated with a record names the one that the class line declares for that role."""
    roles = {
        "server": method.server,
        "client": method.client,
        "down": method.down,
        "mean": method.mean,
        "up": method.up,
    }
    returns = {"step": {method.client}, "finish": {method.up, method.client}, "update": {method.server}}
    returns |= {"broadcast": {method.down}, "init_client": {method.client}, "receive": {method.mean}}
    checked = 0
    for hook, made in returns.items():
        hints = get_type_hints(getattr(type(method), hook))
        named = {argument: kind for argument, kind in hints.items() if argument in roles and is_record(kind)}
        assert all(roles[argument] is kind for argument, kind in named.items()), f"{hook}: {named}"
        assert {kind for kind in flat(hints["return"]) if is_record(kind)} <= made, hook
        checked += len(hints)
    assert checked > len(returns)


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Record)


def flat(kind: Any) -> list[Any]:
    """The types inside a tuple or union annotation."""
    if get_origin(kind) in (tuple, UnionType):
        return [inner for argument in get_args(kind) for inner in flat(argument)]
    return [kind]


def it_is_documented(method: Method) -> None:
    cls = type(method)
    assert "client  " in (cls.__doc__ or ""), "the docstring gives the update"
    assert "server  " in (cls.__doc__ or "")
    assert cls.paper.year > 2015
    assert all(f.metadata["meaning"] for f in fields(cls))
    assert set(cls.sources.published) <= {f.name for f in fields(cls)}
    assert cls.sources.departures, "says where papers and code depart, or that there is no code"
    assert cls.paper.bibtex.startswith(("@inproceedings{", "@misc{"))


CONTRACT: dict[str, Callable[[Method], None]] = {
    "shapes and dtypes are as declared, float32": partial(shapes_and_dtypes_are_as_declared, dtype=torch.float32),
    "shapes and dtypes are as declared, float64": partial(shapes_and_dtypes_are_as_declared, dtype=torch.float64),
    "a stack is its clients one by one": partial(a_stack_is_its_clients_one_by_one, momentum=0.0),
    "a stack is its clients one by one, momentum": partial(a_stack_is_its_clients_one_by_one, momentum=0.9),
    "nothing is written in place": nothing_is_written_in_place,
    "hyper-parameters are frozen and checked": hyper_parameters_are_frozen_and_checked,
    "annotations of hooks are the class line": annotations_of_hooks_are_the_class_line,
    "it is documented": it_is_documented,
}
