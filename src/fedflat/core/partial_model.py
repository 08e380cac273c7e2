"""A wrapper for methods whose clients send a part of the model: parameters and running statistics may stay with them.

The method works on the parameters that are sent, as if there were no others: its records, perturbations and norms have
their width. The parameters that stay descend along the same gradients, without the method's corrections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from .method import Context, Method, Oracle
from .oracle import MovingStatistics, ObservedOracle
from .records import Record, per_round, running_statistics
from .wrapper import EngineWrapper, WithFields, wrapper_in


@dataclass(frozen=True)
class Division:
    """The division of the last axis of a vector into parts that are sent and parts that stay."""

    sizes: tuple[int, ...]  # neighbouring parts take turns
    stays: tuple[bool, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], stays: Sequence[bool]) -> Self:
        """Return the division of tensors of `sizes` numbers, of which those marked in `stays` stay."""
        found = [(stay, sum(size for size, _ in some)) for stay, some in
                 groupby(zip(sizes, stays, strict=True), key=lambda pair: pair[1])]  # fmt: skip
        return cls(tuple(size for _, size in found), tuple(stay for stay, _ in found))

    @property
    def sent(self) -> int:
        """The number of coordinates that are sent."""
        return sum(self.sizes) - self.kept

    @property
    def kept(self) -> int:
        """The number of coordinates that stay."""
        return sum(size for size, stay in zip(self.sizes, self.stays, strict=True) if stay)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coordinates of `x` (*clients, n) that are sent, and those that stay."""
        if len(self.sizes) < 2:
            nothing = x[..., :0]
            return (nothing, x) if any(self.stays) else (x, nothing)
        pieces = torch.split(x, list(self.sizes), dim=-1)
        return self._of(pieces, False), self._of(pieces, True)

    def joined(self, sent: Tensor, kept: Tensor) -> Tensor:
        """Return the vector (*clients, n) with these coordinates; the inverse of `split`."""
        if len(self.sizes) < 2:
            return kept if any(self.stays) else sent
        parts = {}
        for stay, x in ((False, sent), (True, kept)):
            sizes = [size for size, one in zip(self.sizes, self.stays, strict=True) if one == stay]
            parts[stay] = iter(torch.split(x, sizes, dim=-1))
        return torch.cat([next(parts[stay]) for stay in self.stays], dim=-1)

    def _of(self, pieces: Sequence[Tensor], stay: bool) -> Tensor:
        chosen = [piece for piece, one in zip(pieces, self.stays, strict=True) if one == stay]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=-1)


class AveragedStatistics(Record):
    """What messages and the server's record have beside the method's own fields."""

    # The running statistics that are averaged, (*clients, averaged).
    statistics: Annotated[Tensor, "averaged_width"] = running_statistics()


class ClientParts(Record):
    """What a client's record has beside the method's own fields."""

    statistics: Annotated[Tensor, "averaged_width"] = per_round()  # those that are averaged, in training
    own_statistics: Annotated[Tensor, "own_width"]  # those that stay
    kept: Annotated[Tensor, "kept_width"]  # the parameters that stay


class PartialModel(EngineWrapper):
    """A wrapper of a method whose clients send a part of the parameters, and running statistics beside them.

    Local training works on all parameters, d of them. Messages, the server's record and the method's fields in a
    client's record have the width of the parameters that are sent.
    """

    parts: ClassVar[ModelDivision]  # set by `of`

    server: ClassVar[Any] = WithFields(AveragedStatistics)
    client: ClassVar[Any] = WithFields(ClientParts)
    down: ClassVar[Any] = WithFields(AveragedStatistics)
    up: ClassVar[Any] = WithFields(AveragedStatistics)
    mean: ClassVar[Any] = WithFields(AveragedStatistics)

    @classmethod
    def of(cls, base: Method, parts: ModelDivision) -> Self:
        """Wrap `base` for a model that is divided into `parts`."""
        return cls(base=base)._with(parts=parts)

    def on_model(self, shapes: tuple[tuple[int, ...], ...]) -> Self:
        """Return the method for a model with these `shapes`; its base knows those of the parameters that are sent."""
        return super().on_model(self.parts.sent_shapes(shapes))

    @property
    def kept_width(self) -> int:
        """The number of parameters that stay with a client."""
        return self.parts.parameters.kept

    @property
    def averaged_width(self) -> int:
        """The number of running statistics that are averaged."""
        return self.parts.statistics.sent

    @property
    def own_width(self) -> int:
        """The number of running statistics that stay with a client."""
        return self.parts.statistics.kept

    @property
    def penalty(self) -> Any:
        """The weight of the proximal term, (d,) if it is not that of all parameters: what stays is not pulled."""
        weight, kept = self.base.penalty, self.parts.kept
        if not weight or not self.kept_width:
            return weight
        return self.parts.parameters.joined(
            kept.new_full((self.parts.parameters.sent,), weight), torch.zeros_like(kept)
        )

    def fresh_weight(self, down: Any) -> Tensor | float:
        fresh = self.base.fresh_weight(self._inner("down", down))
        if not self.kept_width or (not isinstance(fresh, Tensor) and fresh == 1):
            return fresh
        sent = torch.zeros_like(down.w) + fresh
        return self.parts.parameters.joined(sent, sent.new_ones(*sent.shape[:-1], self.kept_width))

    def init_server(self, w: Tensor) -> Any:
        server = self.base.init_server(self.sent(w))
        return self._outer("server", server, statistics=self.parts.statistics.split(self._statistics(w))[0])

    def broadcast(self, server: Any) -> Any:
        return self._outer("down", self.base.broadcast(self._inner("server", server)), statistics=server.statistics)

    def init_client(self, down: Any) -> Any:
        kept, lead = self.parts.kept.to(down.w), down.w.shape[:-1]
        own = self.parts.statistics.split(self._statistics(down.w))[1]
        return self._outer("client", self.base.init_client(self._inner("down", down)), statistics=down.statistics,
                           own_statistics=own.expand(*lead, -1), kept=kept.expand(*lead, -1))  # fmt: skip

    def start(self, down: Any, client: Any) -> Tensor:
        sent = self.base.start(self._inner("down", down), self._inner("client", client))
        return self.parts.parameters.joined(sent, client.kept)

    def moving(self, down: Any, ctx: Context) -> Tensor | None:
        parts = self.base.moving_parts(ctx) if self.kept_width else None
        if parts is None:
            return self.base.moving(self._inner("down", down), ctx)
        sent, kept = parts
        is_kept = self.parts.parameters.joined(
            down.w.new_zeros(self.parts.parameters.sent, dtype=torch.bool),
            down.w.new_ones(self.kept_width, dtype=torch.bool),
        )
        return (is_kept & kept) | (~is_kept & sent)

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        statistics = MovingStatistics(self.parts.statistics.joined(client.statistics, client.own_statistics))
        if isinstance(grad, ObservedOracle) and statistics.current.shape[-1]:
            grad.move_statistics(statistics)
        sent, kept = self.parts.parameters.split(w)
        inside = _SentPart(grad, self.parts.parameters, kept) if self.kept_width else grad
        d, after = self.base.step(sent, self._inner("client", client), self._inner("down", down), inside,
                                  self._context(ctx, kept))  # fmt: skip
        averaged, own = self.parts.statistics.split(statistics.current)
        state = self._outer("client", after, statistics=averaged, own_statistics=own, kept=client.kept)
        return (inside.whole(d) if isinstance(inside, _SentPart) else d), state

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        sent, kept = self.parts.parameters.split(w)
        ctx = self._context(ctx, kept)
        up, after = self.base.finish(sent, self._inner("client", client), self._inner("down", down), ctx)
        state = self._outer("client", after, statistics=client.statistics, own_statistics=client.own_statistics,
                            kept=kept)  # fmt: skip
        return self._outer("up", up, statistics=client.statistics), state

    def public(self, down: Any, ctx: Context) -> Any:
        found = self.base.public(self._inner("down", down), self._context(ctx))
        return None if found is None else self._outer("up", found, statistics=down.statistics)

    def receive(self, up: Any, ctx: Context) -> Any:
        received = self.base.receive(self._inner("up", up), self._context(ctx))
        return self._outer("mean", received, statistics=up.statistics)

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        after = self.base.update(self._inner("server", server), self._inner("mean", mean), self._context(ctx))
        return self._outer("server", after, statistics=mean.statistics)

    def served(self, server: Any) -> Tensor:
        """Return the server's model (d,); parameters that stay with clients have their initial values."""
        return self.whole(self.base.served(self._inner("server", server)))

    def sent(self, w: Tensor) -> Tensor:
        """Return the parameters in `w` (*clients, d) that are sent."""
        return self.parts.parameters.split(w)[0]

    def whole(self, sent: Tensor, client: Any = None) -> Tensor:
        """Return the model (*clients, d) with the parameters `sent`, and those that stay with `client`.

        client: the client's record; None stands for the initial values.
        """
        kept = self.parts.kept.to(sent).expand(*sent.shape[:-1], -1) if client is None else client.kept
        return self.parts.parameters.joined(sent, kept)

    def statistics_of(self, server: Any, client: Any = None) -> Tensor:
        """Return the running statistics (s,): those of the server, and those that stay with `client`, see `whole`."""
        own = self.parts.statistics.split(self._statistics(server.w))[1] if client is None else client.own_statistics
        return self.parts.statistics.joined(server.statistics, own)

    def _statistics(self, like: Tensor) -> Tensor:
        """Return the initial statistics (s,) on the device of `like`."""
        return self.parts.initial.to(like)

    def _context(self, ctx: Context, kept: Tensor | None = None) -> Context:
        """Return the context for the base: masks, layers and full gradients of the parameters that are sent."""
        if not self.kept_width:
            return ctx
        full = None if ctx.full_grad is None or kept is None else _SentPart(ctx.full_grad, self.parts.parameters, kept)
        is_weight = None if ctx.is_weight is None else self.sent(ctx.is_weight)
        return replace(ctx, full_grad=full, is_weight=is_weight, layers=self.parts.layers)


@dataclass(frozen=True)
class ModelDivision:
    """The parts of a model: what is sent, what stays with clients, and its initial values."""

    parameters: Division
    statistics: Division
    kept: Tensor  # the initial parameters that stay, (kept,)
    initial: Tensor  # all initial running statistics, (s,)
    layers: tuple[slice, ...]  # of each parameter that is sent, among those
    stays: tuple[bool, ...]  # whether each parameter stays

    def sent_shapes(self, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the parameters that are sent, given those of all parameters."""
        return tuple(shape for shape, stay in zip(shapes, self.stays, strict=True) if not stay)


class _SentPart:
    """An oracle on the parameters that are sent; those that stay have the client's current values."""

    def __init__(self, grad: Any, division: Division, kept: Tensor) -> None:
        self.grad, self._division, self._kept = grad, division, kept
        self._stays = torch.zeros_like(kept)  # the last gradient with respect to the parameters that stay

    def __call__(self, w: Tensor) -> Tensor:
        return self._sent(self.grad(self._joined(w)))

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        taught = self.grad.with_teacher(self._joined(e), weight, tau)
        return lambda w: self._sent(taught(self._joined(w)))

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        return self._division.split(self.grad.teacher_gradient(self._joined(w), self._joined(e), tau))[0]

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_w, by_matrix, by_shift = self.grad.wrt_inputs(self._joined(w), matrix, shift)
        return self._sent(by_w), by_matrix, by_shift

    def whole(self, sent: Tensor) -> Tensor:
        """Return a direction (*clients, d): `sent`, and the last gradient for the parameters that stay."""
        return self._division.joined(sent, self._stays)

    def _joined(self, w: Tensor) -> Tensor:
        return self._division.joined(w, self._kept)

    def _sent(self, gradient: Tensor) -> Tensor:
        sent, self._stays = self._division.split(gradient)
        return sent


def partial_model(method: Method) -> PartialModel | None:
    """Return the wrapper of `method` that sends a part of the model; None if all is sent."""
    return wrapper_in(method, PartialModel)


def sent_part(method: Method, w: Tensor) -> Tensor:
    """Return the parameters in `w` (*clients, d) that clients of `method` send."""
    found = partial_model(method)
    return w if found is None else found.sent(w)


def sent_width(method: Method, d: int) -> int:
    """Return how many of `d` parameters clients of `method` send."""
    found = partial_model(method)
    return d if found is None else d - found.kept_width


def whole_model(method: Method, sent: Tensor, client: Any = None) -> Tensor:
    """Return the model (*clients, d) with the parameters `sent`; see `PartialModel.whole`."""
    found = partial_model(method)
    return sent if found is None else found.whole(sent, client)


def statistics_of(method: Method, server: Any, client: Any = None) -> Tensor | None:
    """Return the running statistics (s,), see `PartialModel.statistics_of`; None if the model has none that change."""
    found = partial_model(method)
    return None if found is None or not found.parts.initial.numel() else found.statistics_of(server, client)
