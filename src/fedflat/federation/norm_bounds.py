"""Upper bounds on the norms of what clients send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch

from ..core.records import Record
from .codec import RefusedError


@dataclass(frozen=True)
class NormBounds:
    """A bound for each field that the server averages: a multiple of the largest norm seen in earlier rounds.

    The server's mean obeys the same bound: weights are positive and divided by their sum, so the mean is a convex
    combination, whose norm is at most the largest norm in it.
    """

    multiple: float  # at least 1; infinity means no bound
    start: float  # norm of the initial model, in parameter units; used where no larger norm was seen
    seen: Mapping[str, float] = field(default_factory=dict)  # the largest norm of earlier rounds, by field

    def check(self, received: Record, lr_sum: float) -> dict[str, float]:
        """The norm of each field of one client's record (1, width); `lr_sum` is the sum of its local step sizes.

        Raises RefusedError, naming the field, if a norm is above its bound.
        """
        norms = {
            name: float(torch.linalg.vector_norm(x, dtype=torch.float64)) for name, x in received.tensors().items()
        }
        gradients = received.marked("gradient_scale")
        for name, norm in norms.items():
            # A gradient of norm `start / lr_sum` moves the model by `start` in the client's local steps.
            start = self.start / lr_sum if name in gradients else self.start
            bound = self.multiple * max(self.seen.get(name, 0.0), start)
            if not norm <= bound:
                raise RefusedError(
                    f"{name}: norm is {norm:.3g}, at most {bound:.3g} is allowed, "
                    f"norm-multiple = {self.multiple:g} times the largest seen before"
                )
        return norms

    def updated(self, accepted: Iterable[Mapping[str, float]]) -> Self:
        """The bounds after a round, from the norms of each accepted reply.

        A round contributes the lower median of its clients' norms, which more than half of them reach. With the
        maximum, a single client could send the largest norm allowed in every round and so raise the bound
        exponentially.
        """
        replies, seen = list(accepted), dict(self.seen)
        for name in replies[0]:
            median = sorted(norms[name] for norms in replies)[(len(replies) - 1) // 2]
            seen[name] = max(seen.get(name, 0.0), median)
        return replace(self, seen=seen)
