"""How large the vectors of a client may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from ..core.records import Record
from .codec import RefusedError


@dataclass(frozen=True)
class NormBounds:
    """A bound for each field of what the server averages: a multiple of the largest norm seen in earlier rounds.

    A mean is a convex combination, for weights are positive and divided by their sum: its norm is at most the largest
    of the norms that went into it, so it has the same bound.
    """

    multiple: float  # at least 1; infinity is no bound
    start: float  # stands for earlier rounds in the first: the norm of the initial model, in parameter units
    seen: Mapping[str, float] = field(default_factory=dict)  # by field

    def of(self, received: Record, lr_sum: float) -> dict[str, float]:
        """The norms of one client's fields (1, width); `lr_sum` is the sum of its local step sizes.

        Raises RefusedError, naming the field, if one is beyond its bound.
        """
        found = {
            name: float(torch.linalg.vector_norm(x, dtype=torch.float64)) for name, x in received.tensors().items()
        }
        gradients = received.marked("gradient_scale")
        for name, norm in found.items():
            # A gradient as large as this moves the model, in the client's local steps, by as much as `start`.
            start = self.start / lr_sum if name in gradients else self.start
            bound = self.multiple * max(self.seen.get(name, 0.0), start)
            if not norm <= bound:
                raise RefusedError(
                    f"{name}: norm is {norm:.3g}, at most {bound:.3g} is allowed, "
                    f"norm-multiple = {self.multiple:g} times the largest seen before"
                )
        return found

    def after(self, round_: Iterable[Mapping[str, float]]) -> Self:
        """With the norms of the clients that counted in a round.

        A round counts with the norm that more than half of its clients have reached (the lower median): with the
        largest, one client could send as much as it may in every round, and so raise the bound exponentially.
        """
        clients, seen = list(round_), dict(self.seen)
        for name in clients[0]:
            reached = sorted(norms[name] for norms in clients)[(len(clients) - 1) // 2]
            seen[name] = max(seen.get(name, 0.0), reached)
        return replace(self, seen=seen)
