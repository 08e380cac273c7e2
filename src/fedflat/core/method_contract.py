"""The promises of every method to its callers: `CONTRACT` has one check for each promise, called with the method.

`fedflat check-method` and the tests of this package run these checks. They use a small problem with four clients, which
take different numbers of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from functools import partial
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from .descent import Descent
from .errors import BrokenPromiseError, InputError
from .local import local_round
from .method import Context, Method
from .records import Record
from .user_code import check_record

SHAPES = ((2, 4), (3,))  # of the parameters of the model
D, CLIENTS = 11, 4
STEPS = (5, 3, 3, 1)  # local steps of each client: uneven, in descending order


def target(clients: int, dtype: torch.dtype) -> Tensor:
    """Return the point that attracts each client, (clients, D)."""
    return torch.randn(clients, D, dtype=dtype, generator=torch.Generator().manual_seed(2))


@dataclass(frozen=True)
class ContractOracle:
    """The gradient oracle of a non-quadratic loss for each row of `b`, with all methods of an engine's oracle."""

    b: Tensor
    k: int
    e: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        """Return the gradient at `w` (*clients, d)."""
        taught = 0.0 if self.e is None else w - self.e
        return torch.tanh(w - self.b) + 0.1 * (self.k + 1) * w + taught

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> ContractOracle:
        """Return the oracle of the loss with a teacher; see `core.oracle.with_teacher`."""
        return replace(self, e=e)

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        """Return the gradient of a teacher's penalty alone; see `core.oracle.teacher_gradient`."""
        return torch.tanh((w - e) / tau)

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to `w`, `matrix` and `shift`; see `core.oracle.wrt_inputs`."""
        return self(w), torch.tanh(matrix), torch.tanh(shift + self.b[..., :1])


def oracles(b: Tensor) -> Iterator[tuple[ContractOracle, int]]:
    """Yield the oracle of each local step, and the number of clients that take it."""
    for k in range(max(STEPS)):
        active = sum(n > k for n in STEPS) if b.ndim > 1 else 1
        yield ContractOracle(b[:active] if b.ndim > 1 else b, k), active


def context(dtype: torch.dtype = torch.float64, **changes: Any) -> Context:
    """Return the context of a round of the small problem, for the stack of all clients."""
    model: dict[str, Any] = {
        "local_steps": torch.tensor(STEPS, dtype=dtype)[:, None],
        "is_weight": torch.arange(D) < 8,
        "layers": (slice(0, 8), slice(8, D)),
        "full_grad": torch.tanh,
    }
    return Context(**{"t": 1, "lr": 0.1, "share": 0.5, "sampled": CLIENTS} | model | changes)


def states(method: Method, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Any]:
    """Return the records after three rounds: the server's, its message stacked for all clients, and the clients'."""
    server = method.init_server(torch.linspace(-1, 1, D, dtype=dtype))
    down = method.broadcast(server).map(lambda x: x.expand(CLIENTS, -1))
    client = method.init_client(down)
    for t in range(3):
        result = local_round(method, down, client, oracles(target(CLIENTS, dtype)), context(dtype, t=t), Descent(0.1))
        means = context(t=t, steps=result.steps.mean(0), lr_sum=result.lr_factors.mean(0) * 0.1)
        received = method.receive(result.up, context(t=t, steps=result.steps, lr_sum=result.lr_factors * 0.1))
        server = check_record(
            method, "update", method.update(server, received.map(lambda x: x.mean(0)), means), method.server
        )
        down, client = method.broadcast(server).map(lambda x: x.expand(CLIENTS, -1)), result.client
    return server, down, client


def require(kept: bool, problem: str) -> None:
    """Raise BrokenPromiseError with the message `problem` unless `kept` is true."""
    if not kept:
        raise BrokenPromiseError(problem)


def require_shape(
    role: str, record: Any, kind: type[Record], method: Method, lead: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Raise BrokenPromiseError unless `record` is a `kind` whose tensors have shape (*lead, width) and this `dtype`."""
    require(type(record) is kind, f"{role} is a {type(record).__name__}, the class line says {kind.__name__}")
    for name, width in kind.widths(D, method).items():
        x, shape = getattr(record, name), (*lead, width)
        require(isinstance(x, Tensor), f"{role}.{name} is a {type(x).__name__}, not a tensor")
        require(x.shape == shape, f"{role}.{name} has shape {tuple(x.shape)}, not {shape}")
        require(x.dtype == dtype, f"{role}.{name} is {x.dtype}, not {dtype} as the model is")


def shapes_and_dtypes_are_as_declared(method: Method, dtype: torch.dtype) -> None:
    """Require that every hook returns the fields and shapes that the class line declares, in the model's dtype."""
    server, down, client = states(method, dtype)
    result = local_round(method, down, client, oracles(target(CLIENTS, dtype)), context(dtype), Descent(0.1))
    received = method.receive(result.up, context(steps=result.steps, lr_sum=result.lr_factors * 0.1))
    require_shape("server", server, method.server, method, (), dtype)
    require_shape("down", down, method.down, method, (CLIENTS,), dtype)
    require_shape("client", result.client, method.client, method, (CLIENTS,), dtype)
    require_shape("up", result.up, method.up, method, (CLIENTS,), dtype)
    require_shape("what is received", received, method.mean, method, (CLIENTS,), dtype)


def a_stack_is_its_clients_one_by_one(method: Method, momentum: float) -> None:
    """Require that a client has the same result in a stack as alone, with uneven steps, clipping and weight decay."""
    _, down, client = states(method)
    b, descent = target(CLIENTS, torch.float64), Descent(0.1, weight_decay=0.01, max_norm=1.5, momentum=momentum)
    stacked = local_round(method, down, client, oracles(b), context(), descent)
    for i, steps in enumerate(STEPS):
        mine = down.map(lambda x, i=i: x[i]), client.map(lambda x, i=i: x[i])
        alone = local_round(method, *mine, list(oracles(b[i]))[:steps], context(local_steps=steps), descent)
        require(bool(stacked.steps[i] == alone.steps == steps), "a client takes another number of steps in a stack")
        for side in ("up", "client"):
            for name, tensor in getattr(alone, side).tensors().items():
                apart = (
                    float((getattr(getattr(stacked, side), name)[i] - tensor).abs().max()) if tensor.numel() else 0.0
                )
                require(
                    apart <= 1e-13,  # rounding
                    f"{side}.{name} of client {i} differs by {apart:.2g} between a stack and the client alone; "
                    "hooks reduce over the last axis only, with keepdim=True",
                )


def nothing_is_written_in_place(method: Method) -> None:
    """Require that no hook changes a tensor that it was given."""
    server, down, client = states(method)
    before = [x.clone() for record in (server, down, client) for x in record.tensors().values()]
    result = local_round(method, down, client, oracles(target(CLIENTS, torch.float64)), context(), Descent(0.1))
    sent = [x.clone() for x in result.up.tensors().values()]
    means = context(steps=result.steps.mean(0), lr_sum=result.lr_factors.mean(0) * 0.1)
    received = method.receive(result.up, context(steps=result.steps, lr_sum=result.lr_factors * 0.1))
    method.update(server, received.map(lambda x: x.mean(0)), means)
    after = [x for record in (server, down, client) for x in record.tensors().values()]
    require(_equal(before, after), "a tensor of server, down or client was changed in place; write x + y, not x += y")
    require(_equal(sent, [*result.up.tensors().values()]), "update or receive changed a tensor of the message in place")


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def hyper_parameters_are_frozen_and_checked(method: Method) -> None:
    """Require that fields cannot be assigned, and that the error for a value outside its range names the field."""
    cls: Any = type(method)
    for f in fields(cls):
        try:
            setattr(method, f.name, 3.0)
        except FrozenInstanceError:
            pass
        else:
            raise BrokenPromiseError(f"{f.name} can be assigned; methods are frozen dataclasses")
        require(
            "interval" in f.metadata, f"{f.name} has no range; declare it with hyper(default, meaning, low=, high=)"
        )
        interval = f.metadata["interval"]
        if interval.low > -float("inf"):
            _require_refused(cls, f.name, interval.low - 1)


def _require_refused(cls: Any, name: str, value: float) -> None:
    try:
        cls(**{name: value})
    except InputError as error:
        start = f"{cls.__name__}.{name} must be "
        require(str(error).startswith(start), f"{name} = {value} is refused with {str(error)!r}, not {start}...")
    else:
        raise BrokenPromiseError(f"{name} = {value} is below its range and was accepted")


def annotations_of_hooks_are_the_class_line(method: Method) -> None:
    """Require that the annotations of hooks name the records that the class line declares."""
    roles = {
        "server": method.server,
        "client": method.client,
        "down": method.down,
        "mean": method.mean,
        "up": method.up,
    }
    returns = {"step": {method.client}, "finish": {method.up, method.client}, "update": {method.server}}
    returns |= {"broadcast": {method.down}, "init_client": {method.client}, "receive": {method.mean}, "own_step": set()}
    for hook, made in returns.items():
        hints = get_type_hints(getattr(type(method), hook))
        for argument, kind in hints.items():
            if argument in roles and is_record(kind):
                right = roles[argument].__name__
                require(kind is roles[argument], f"{hook}: {argument} is annotated {kind.__name__}, and is {right}")
        wrong = {kind.__name__ for kind in flat(hints.get("return")) if is_record(kind) and kind not in made}
        require(not wrong, f"{hook} is annotated to return {', '.join(wrong)}, which the class line does not name")


def is_record(kind: Any) -> bool:
    """Tell whether an annotation is a class of records."""
    return isinstance(kind, type) and issubclass(kind, Record)


def flat(kind: Any) -> list[Any]:
    """Return the types inside a tuple or union annotation."""
    if get_origin(kind) in (tuple, UnionType):
        return [inner for argument in get_args(kind) for inner in flat(argument)]
    return [kind]


def a_mean_over_all_clients_is_marked(method: Method) -> None:
    """Require a field marked `mean_of_clients` in the server's record if an update depends on the share of clients.

    Such a field holds the mean of what all clients keep, so its change is proportional to the share.
    """
    server, down, client = states(method)
    result = local_round(method, down, client, oracles(target(CLIENTS, torch.float64)), context(), Descent(0.1))
    received = method.receive(result.up, context(steps=result.steps, lr_sum=result.lr_factors * 0.1))
    mean, steps = received.map(lambda x: x.mean(0)), result.steps.mean(0)
    contexts = (context(share=share, steps=steps, lr_sum=steps * 0.1) for share in (0.5, 1.0))
    half, all_of_them = (method.update(server, mean, ctx) for ctx in contexts)
    moved = {name for name, x in half.tensors().items() if not torch.equal(x, getattr(all_of_them, name))}
    marked = method.server.marked("mean_of_clients")
    require(
        not moved or bool(marked),
        f"the share of clients changes {', '.join(sorted(moved))}: mark the server's field that is a mean over all "
        "clients with mean_of_clients(), so that a federation that grows can scale it",
    )
    for name in marked:
        before, once, twice = (getattr(one, name) for one in (server, half, all_of_them))
        apart = float(((twice - before) - 2 * (once - before)).abs().max()) if before.numel() else 0.0
        require(
            apart <= 1e-13, f"server.{name} is no mean over all clients: its change is not proportional to the share"
        )


def _on_model(check: Callable[[Method], None]) -> Callable[[Method], None]:
    """Return the check for a method that knows the shapes of the small problem's model."""
    return lambda method: check(method.on_model(SHAPES))


_CHECKS: dict[str, Callable[[Method], None]] = {
    "shapes and dtypes are as declared, float32": partial(shapes_and_dtypes_are_as_declared, dtype=torch.float32),
    "shapes and dtypes are as declared, float64": partial(shapes_and_dtypes_are_as_declared, dtype=torch.float64),
    "a stack is its clients one by one": partial(a_stack_is_its_clients_one_by_one, momentum=0.0),
    "a stack is its clients one by one, momentum": partial(a_stack_is_its_clients_one_by_one, momentum=0.9),
    "nothing is written in place": nothing_is_written_in_place,
    "hyper-parameters are frozen and checked": hyper_parameters_are_frozen_and_checked,
    "annotations of hooks are the class line": annotations_of_hooks_are_the_class_line,
    "a mean over all clients is marked": a_mean_over_all_clients_is_marked,
}
CONTRACT = {promise: _on_model(check) for promise, check in _CHECKS.items()}
