"""A wrapper for methods whose clients compress what they send, and keep what they did not send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from .compression import Compression, Uniform
from .method import Context, Method, Oracle
from .records import Record
from .wrapper import EngineWrapper, WithFields, wrapper_in

# Fields that compression would break: squares and variances would become negative or 0, numbers without a unit leave
# their range.
IN_FULL = ("squared_length", "in_range", "running_statistics")


class UnsentPart(Record):
    """What a client's record has beside the method's own fields."""

    unsent: Annotated[Tensor, "unsent_width"]  # of every compressed field, one after the other, in its unit


class Compressed(EngineWrapper):
    """A wrapper with the unsent part of earlier messages in the client's record.

    An executor calls `compress` after local training, because hooks do not know the client's number, on which random
    numbers depend. A configuration cannot name this class; `of` constructs it.
    """

    client: ClassVar[Any] = WithFields(UnsentPart)

    compression: ClassVar[Compression]
    sent_width: ClassVar[int]  # d of what is sent

    @classmethod
    def of(cls, base: Method, compression: Compression, d: int) -> Self:
        """Wrap `base`, whose clients send vectors of a model of `d` parameters."""
        return cls(base=base)._with(compression=compression, sent_width=d)

    @property
    def compressed_widths(self) -> dict[str, int]:
        """The width of each field of a message that is compressed: all of more than one number but `IN_FULL`."""
        kind: Any = self.base.up
        full = frozenset[str]().union(*map(kind.marked, IN_FULL))
        return {name: width for name, width in kind.widths(self.sent_width, self.base).items()
                if width > 1 and name not in full}  # fmt: skip

    @property
    def unsent_width(self) -> int:
        """The width of the unsent part."""
        return sum(self.compressed_widths.values()) if self.compression.error_feedback else 0

    def init_client(self, down: Any) -> Any:
        nothing = down.w.new_zeros(*down.w.shape[:-1], self.unsent_width)
        return self._outer("client", self.base.init_client(down), unsent=nothing)

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        d, after = self.base.step(w, self._inner("client", client), down, grad, ctx)
        return d, self._outer("client", after, unsent=client.unsent)

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        up, after = self.base.finish(w, self._inner("client", client), down, ctx)
        return up, self._outer("client", after, unsent=client.unsent)

    def compress(self, up: Any, client: Any, uniform: Uniform) -> tuple[Any, Any]:
        """Return the messages to send (*clients, width), and the clients' records with what is left unsent.

        up, client: what local training made, records of this wrapper or of one around it.
        """
        widths, feedback = self.compressed_widths, self.compression.error_feedback
        parts = torch.split(client.unsent, list(widths.values()), dim=-1) if feedback else [0.0] * len(widths)
        wanted = {name: getattr(up, name) + part for name, part in zip(widths, parts, strict=True)}
        sent = {name: self.compression.compressed(x, uniform) for name, x in wanted.items()}
        if feedback and widths:
            client = replace(client, unsent=torch.cat([wanted[name] - sent[name] for name in widths], dim=-1))
        return replace(up, **sent), client


def compressed_fields(method: Method) -> Mapping[str, Compression]:
    """Return how each field of the messages of `method` that is compressed is, by name."""
    found = wrapper_in(method, Compressed)
    return {} if found is None else dict.fromkeys(found.compressed_widths, found.compression)
