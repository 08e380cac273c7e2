"""Methods that wrap another method: they have its records and hooks, and change some of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from .errors import InputError
from .method import Context, Method, Oracle
from .oracle import as_descent_gradient
from .records import Record, Scalar


class OfBase:
    """An attribute that is read from the base of a wrapper; on the wrapper's class, from the default base."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, kind: Any) -> Any:
        return getattr((kind if wrapper is None else wrapper).base, self.name)


class Wrapper(Method):
    """A method that wraps another one, `base`; its records, hooks and other attributes are those of the base.

    A subclass gives `base` a default and overrides some hooks; `super()` in a hook calls the hook of the base. A
    wrapper cannot wrap a wrapper. The base needs no change to be wrapped.
    """

    base: Method
    wraps_wrappers: ClassVar[bool] = False

    weights: ClassVar[Any] = OfBase()
    training: ClassVar[Any] = OfBase()
    linear_in_gradient: ClassVar[Any] = OfBase()
    keeps_head: ClassVar[Any] = OfBase()
    shapes: ClassVar[Any] = OfBase()
    depends_on_rounds: ClassVar[Any] = OfBase()
    server: ClassVar[Any] = OfBase()
    client: ClassVar[Any] = OfBase()
    down: ClassVar[Any] = OfBase()
    up: ClassVar[Any] = OfBase()
    mean: ClassVar[Any] = OfBase()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.base, Wrapper) and not self.wraps_wrappers:
            raise InputError(nested(type(self).__name__, type(self.base).__name__))

    def __getattr__(self, name: str) -> Any:
        """Look up other attributes in the base, such as an option that gives the width of a field."""
        if name == "base" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return getattr(self.base, name)

    @property
    def needs_equal_weights(self) -> bool:
        return self.base.needs_equal_weights

    @property
    def penalty(self) -> float:
        return self.base.penalty

    @property
    def own_penalty(self) -> float:
        return self.base.own_penalty

    @property
    def perturbation_options(self) -> frozenset[str]:
        return self.base.perturbation_options

    def fresh_weight(self, down: Any) -> Tensor | float:
        return self.base.fresh_weight(down)

    def fitted(self, shape: tuple[int, ...]) -> Self:
        return self._with(base=self.base.fitted(shape))

    def on_model(self, shapes: tuple[tuple[int, ...], ...]) -> Self:
        return self._with(base=self.base.on_model(shapes))

    @property
    def tensors(self) -> int:
        return self.base.tensors

    def check_model(self) -> None:
        self.base.check_model()

    def check_rounds(self, rounds: int) -> None:
        self.base.check_rounds(rounds)

    def round_lr(self, ctx: Context) -> float:
        return self.base.round_lr(ctx)

    def init_server(self, w: Tensor) -> Any:
        return self.base.init_server(w)

    def broadcast(self, server: Any) -> Any:
        return self.base.broadcast(server)

    def init_client(self, down: Any) -> Any:
        return self.base.init_client(down)

    def start(self, down: Any, client: Any) -> Tensor:
        return self.base.start(down, client)

    def moving(self, down: Any, ctx: Context) -> Tensor | None:
        return self.base.moving(down, ctx)

    def moving_parts(self, ctx: Context) -> tuple[Tensor | bool, Tensor | bool] | None:
        return self.base.moving_parts(ctx)

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return self.base.step(w, client, down, grad, ctx)

    def own_step(self, v: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> Tensor:
        return self.base.own_step(v, client, down, grad, ctx)

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        return self.base.finish(w, client, down, ctx)

    def lr_factor(self, ctx: Context) -> Tensor | float:
        return self.base.lr_factor(ctx)

    def public(self, down: Any, ctx: Context) -> Any:
        return self.base.public(down, ctx)

    def receive(self, up: Any, ctx: Context) -> Any:
        return self.base.receive(up, ctx)

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        return self.base.update(server, mean, ctx)

    def served(self, server: Any) -> Tensor:
        return self.base.served(server)


def nested(wrapper: str, base: str) -> str:
    """Return the error message for a wrapper that wraps another wrapper, given their names."""
    return f"{wrapper}.base: {base} is a wrapper itself; {wrapper} needs a plain method, such as FedSAM"


def chain(method: Method) -> list[Method]:
    """Return the method, followed by its base if it is a wrapper; wrappers of an engine are left out.

    The last method is never a wrapper.
    """
    inside = chain(method.base) if isinstance(method, Wrapper) else []
    return inside if isinstance(method, EngineWrapper) else [method, *inside]


def serves_another(method: Method) -> bool:
    """Tell whether the model that is evaluated may differ from the model that is trained."""
    return any(type(one).served not in (Method.served, Wrapper.served) for one in chain(method))


def label_of(method: Method) -> str:
    """Return the label of a method: its class name, or for a wrapper both class names, such as `SWA-FedASAM`."""
    return "-".join(type(one).__name__ for one in chain(method))


class EngineWrapper(Wrapper):
    """A wrapper that an engine puts around any method of a run; neither settings nor labels show it."""

    paper: ClassVar[Any] = OfBase()
    sources: ClassVar[Any] = OfBase()
    wraps_wrappers: ClassVar[bool] = True

    base: Method

    def _inner(self, role: str, record: Any) -> Any:
        """Return the base's part of a record of this wrapper."""
        kind = getattr(self.base, role)
        return kind(**{name: getattr(record, name) for name in kind.__match_args__})

    def _outer(self, role: str, record: Any, **further: Tensor) -> Any:
        """Return a record of this wrapper from the base's record and further fields."""
        return getattr(self, role)(**record.tensors(), **further)


Found = TypeVar("Found", bound=EngineWrapper)


def wrapper_in(method: Method, kind: type[Found]) -> Found | None:
    """Return the wrapper of this `kind` among those that an engine has put around a method; None without one."""
    inner: Any = method
    while isinstance(inner, EngineWrapper) and not isinstance(inner, kind):
        inner = inner.base
    return inner if isinstance(inner, kind) else None


@cache
def _extended(record: Any, further: Any) -> Any:
    """Return a record class with the fields of the classes `record` and `further`."""
    return type(f"{record.__name__}With{further.__name__}", (further, record), {})


class WithFields(OfBase):
    """A record class of the base with further fields."""

    def __init__(self, further: Any) -> None:
        self._further = further  # a class of records

    def __get__(self, wrapper: Any, kind: Any) -> Any:
        return _extended(super().__get__(wrapper, kind), self._further)


ALWAYS, EVEN, ODD = -1, 0, 1  # the rounds in which a coordinate moves


class Turn(Record):
    """What the server's record and messages have beside the method's own fields."""

    turn: Scalar  # rounds so far, modulo 2


class Alternation(EngineWrapper):
    """A wrapper that trains some coordinates in every round, some only in even rounds, and some only in odd rounds.

    A round equals a round of the base on the subspace of the coordinates that move. The base sees zeros at the frozen
    coordinates of every vector, models included, so they add nothing to norms and products. Gradients are computed at
    the full model, then set to zero at frozen coordinates. Models, control variates and momenta keep their values at
    frozen coordinates until these move again. Clients receive all coordinates.

    A configuration cannot name this class; `of` constructs it from the rounds in which each coordinate moves.
    """

    server: ClassVar[Any] = WithFields(Turn)
    down: ClassVar[Any] = WithFields(Turn)

    base: Method

    @classmethod
    def of(cls, base: Method, when: Tensor) -> Self:
        """Wrap `base`; `when` (d,) gives the rounds, from 0, in which each coordinate moves: `ALWAYS`, `EVEN` or `ODD`.

        Raises InputError if `base` is a wrapper, or trains each client alone or a model of the client's own.
        """
        if len(chain(base)) > 1 or base.training == "local" or base.client.marked("own_model"):
            raise InputError(f"adapter.mode = 'alternate' does not go with {label_of(base)}; use both or freeze_a")
        return cls(base=base)._with(when=when)

    def moving(self, down: Any, ctx: Context) -> Tensor:
        """Return the mask of coordinates that move, (*clients, d) bool; it is that of the whole round."""
        return self._moving(down)

    def _moving(self, record: Any) -> Tensor:
        """Return the mask of a round from the turn in the server's record, or in its message."""
        when = self.when.to(record.turn.device)
        moving: Tensor = (when == ALWAYS) | (when == record.turn)
        return moving

    def init_server(self, w: Tensor) -> Any:
        return self._outer("server", self.base.init_server(w), turn=w.new_zeros(1))

    def broadcast(self, server: Any) -> Any:
        moving = self._moving(server)
        inner = self._inner("server", server)
        sent = self._merged(moving, self.base.broadcast(_only(moving, inner)), self.base.broadcast(inner))
        return self._outer("down", replace(sent, w=torch.where(moving, sent.w, server.w)), turn=server.turn)

    def start(self, down: Any, client: Any) -> Tensor:
        moving = self._moving(down)
        return torch.where(moving, self.base.start(_only(moving, down), _only(moving, client)), down.w)

    def fresh_weight(self, down: Any) -> Tensor | float:
        return self.base.fresh_weight(_only(self._moving(down), down))

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        moving = self._moving(down)
        inside, ctx = _Subspace.of(grad, moving, down.w), self._inside(ctx, moving, down)
        d, after = self.base.step(_kept(moving, w), _only(moving, client), _only(moving, down), inside, ctx)
        return _kept(moving, d), self._merged(moving, after, client)

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        moving = self._moving(down)
        ctx = self._inside(ctx, moving, down)
        up, after = self.base.finish(_kept(moving, w), _only(moving, client), _only(moving, down), ctx)
        return _only(moving, up), self._merged(moving, after, client)

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        moving = self._moving(server)
        inner = self._inner("server", server)
        after = self._merged(moving, self.base.update(_only(moving, inner), _only(moving, mean), ctx), inner)
        return self._outer("server", after, turn=1 - server.turn)

    def _inside(self, ctx: Context, moving: Tensor, down: Any) -> Context:
        if ctx.full_grad is None:
            return ctx
        return replace(ctx, full_grad=_Subspace.of(ctx.full_grad, moving, down.w))

    def _merged(self, moving: Tensor, after: Any, before: Any) -> Any:
        """Merge two records: `after` where coordinates move, `before` elsewhere.

        Fields that are not as wide as the model come from `after`.
        """
        width = moving.shape[-1]
        merged = {
            name: torch.where(moving, x, getattr(before, name)) if x.shape[-1] == width else x
            for name, x in after.tensors().items()
        }
        return type(after)(**merged)


@dataclass(frozen=True)
class _Subspace:
    """An oracle on the coordinates that move; the frozen coordinates have the values of the received model."""

    grad: Any
    moving: Tensor  # (*clients, d) bool
    rest: Tensor  # (*clients, d) the received model, 0 where coordinates move

    @classmethod
    def of(cls, grad: Any, moving: Tensor, w: Tensor) -> _Subspace:
        return cls(grad, moving, _kept(~moving, w))

    def __call__(self, w: Tensor) -> Tensor:
        return self._of(self.grad(w + self.rest))

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        taught = self.grad.with_teacher(e + self.rest, weight, tau)
        return lambda w: self._of(taught(w + self.rest))

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        return _kept(self.moving, self.grad.teacher_gradient(w + self.rest, e + self.rest, tau))

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_w, by_matrix, by_shift = self.grad.wrt_inputs(w + self.rest, matrix, shift)
        return self._of(by_w), by_matrix, by_shift

    def _of(self, gradient: Tensor) -> Tensor:
        """Return the gradient in the subspace, and record it as the descent gradient, which is clipped."""
        return as_descent_gradient(self.grad, _kept(self.moving, gradient))


def _kept(moving: Tensor, x: Tensor) -> Tensor:
    """Set `x` (*clients, d) to 0 where coordinates do not move."""
    return torch.where(moving, x, torch.zeros_like(x))


def _only(moving: Tensor, record: Any) -> Any:
    """Set the vectors of a record to 0 at coordinates that do not move."""
    return record.map(lambda x: _kept(moving, x) if x.shape[-1] == moving.shape[-1] else x)
