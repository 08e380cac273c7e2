"""A wrapper for methods whose clients keep the state of their local optimiser between their rounds."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from .descent import Descent
from .method import Method
from .records import Record
from .wrapper import EngineWrapper, WithFields


class KeptState(Record):
    """What a client's record has beside the method's own fields."""

    optimizer: Annotated[Tensor, "optimizer_width"]  # all fields of the optimiser's state, one after the other


class KeptOptimizer(EngineWrapper):
    """A wrapper with the state of the local optimiser in the client's record; `local_round` begins with it.

    A configuration cannot name this class; `of` constructs it.
    """

    client: ClassVar[Any] = WithFields(KeptState)

    kind: ClassVar[type[Record]]  # of the state
    widths: ClassVar[list[int]]  # of the state's fields

    @classmethod
    def of(cls, base: Method, descent: Descent, d: int) -> Method:
        """Wrap `base` for clients that train `d` parameters by `descent`; return `base` if that has no state."""
        if descent.state is None:
            return base
        return cls(base=base)._with(kind=descent.state, widths=list(descent.state.widths(d).values()))

    @property
    def optimizer_width(self) -> int:
        """The width of the state."""
        return sum(self.widths)

    def init_client(self, down: Any) -> Any:
        nothing = down.w.new_zeros(*down.w.shape[:-1], self.optimizer_width)
        return self._outer("client", self.base.init_client(down), optimizer=nothing)

    def state_in(self, client: Any) -> Record:
        """Return the optimiser's state in a client's record, each field in memory of its own."""
        parts = (part.clone() for part in torch.split(client.optimizer, self.widths, dim=-1))
        return self.kind(**dict(zip(self.kind.__match_args__, parts, strict=True)))

    def with_state(self, client: Any, state: Record) -> Any:
        """Return a client's record from that of the base and the optimiser's state."""
        return self._outer("client", client, optimizer=torch.cat(list(state.tensors().values()), dim=-1))


def take_state(method: Method, client: Any, descent: Descent, w: Tensor) -> tuple[Any, Any]:
    """Return the optimiser's state and the record of `client` without it, before the first local step at `w`."""
    if isinstance(method, KeptOptimizer):
        return method.state_in(client), method._inner("client", client)
    return descent.start(w), client


def keep_state(method: Method, client: Any, state: Any) -> Any:
    """Return the client's record, in which the optimiser's `state` after the last local step is kept if it should."""
    return method.with_state(client, state) if isinstance(method, KeptOptimizer) else client
