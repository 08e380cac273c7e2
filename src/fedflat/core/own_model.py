"""Models that clients train beside the received one and keep: the field of their records that `own_model` marks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from torch import Tensor

from .descent import Descent, DirectionParts
from .method import Context, Method
from .oracle import ObservedOracle, Oracle
from .partial_model import whole_model
from .user_code import check_direction
from .wrapper import EngineWrapper


def own_field(method: Method) -> str | None:
    """Return the name of the field with a client's own model in its record; None if the method has no such field."""
    record: Any = method.client
    return _own_field(record)


@cache
def _own_field(record: Any) -> str | None:
    return next(iter(record.marked("own_model")), None)


def own_model_of(method: Method, w: Tensor, record: Any) -> Tensor:
    """Return the own model (*clients, d) of the client with `record`; `w` has the parameters that the server sends."""
    if method.training == "local":
        own: Tensor = record.w
        return own
    name = own_field(method)
    return whole_model(method, w, record) if name is None else getattr(record, name)


def own_direction(method: Method, client: Any, down: Any, grad: Oracle, ctx: Context) -> Tensor | None:
    """Return the direction (*clients, d) of a local step of the clients' own models; None if there are none."""
    name = own_field(method)
    if name is None:
        return None
    return check_direction(method, "own_step", method.own_step(getattr(client, name), client, down, grad, ctx))


def own_step(
    method: Method, client: Any, optimizer: Any, down: Any, grad: ObservedOracle, ctx: Context, descent: Descent,
    lr_factor: Tensor | float,
) -> tuple[Any, Any]:  # fmt: skip
    """Take a local step of the clients' own models, if there are any; return the clients' records and `optimizer`.

    The local update is that of w, with an optimiser state of its own, `optimizer`.
    """
    d = own_direction(method, client, down, grad, ctx)
    if d is None:
        return client, optimizer
    name, parts = str(own_field(method)), DirectionParts(grad.descent, penalty=method.own_penalty)
    v, optimizer = descent(getattr(client, name), d, optimizer, parts, lr_factor)
    return replace(client, **{name: v}), optimizer


class OwnStart(EngineWrapper):
    """A wrapper whose clients' own models begin as the initial model of the run, whenever a client is first asked.

    A configuration cannot name this class; `of` constructs it.
    """

    initial: ClassVar[Tensor]  # (d,)

    @classmethod
    def of(cls, base: Method, w: Tensor) -> Method:
        """Wrap `base` for the initial model `w` (d,); return `base` if its clients have no models of their own."""
        return base if own_field(base) is None else cls(base=base)._with(initial=w)

    def init_client(self, down: Any) -> Any:
        """Return the record of the base, in which the client's own model is the initial one."""
        first, name = self.base.init_client(down), own_field(self.base)
        return replace(first, **{str(name): self.initial.to(down.w).expand_as(down.w)})
