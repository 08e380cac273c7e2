"""A bound on what one client can do to the mean: on the norm of its whole record, and on its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper
from ..core.method import Method
from ..core.record_norm import record_norm, shortened_to
from ..core.records import Record, is_finite
from .device import one_thread

REMEMBERED = 9  # rounds whose norms the running median is of: it is an honest client's while five of them are


@by_name
@dataclass(frozen=True, kw_only=True)
class Guard:
    """What the server does about a client's record that is too long, and about a client that has too much weight.

    The norm is that of all fields together. A record with NaN or infinity is refused in any case.
    """

    bound: float | None = hyper(
        None, "largest norm of what is averaged of a client, in parameter units", low=0, open_low=True
    )
    multiple: float | None = hyper(
        None,
        "the same as a multiple of the running median of the accepted norms; with bound, the smaller one counts",
        low=1,
    )
    action: Literal["clip", "refuse"] = hyper(
        "clip", "what happens to a longer one: it is shortened to the bound, or left out of the round"
    )
    max_weight: float | None = hyper(
        None, "largest weight of a client in the mean, as a multiple of the round's lower median", low=1
    )

    def __post_init__(self) -> None:
        """Raises InputError, naming the field, for what bounds nothing."""
        check(self, "guard")
        if not self.bounds_norms and (self.max_weight is None or self.max_weight == inf):
            raise InputError(
                "guard: nothing is bounded; give bound (such as 3.0), multiple (such as 3.0) or max_weight"
            )

    @property
    def bounds_norms(self) -> bool:
        """Whether there is a bound on norms, and not on weights alone."""
        return any(value is not None and isfinite(value) for value in (self.bound, self.multiple))

    def limited(self, weights: Tensor) -> Tensor:
        """The weights (c, 1) of all clients of a round, none above `max_weight` times their lower median.

        They stay whole numbers, with which products are exact.
        """
        if self.max_weight is None or self.max_weight == inf:
            return weights
        median = weights.flatten().sort().values[(len(weights) - 1) // 2]
        return torch.minimum(weights, (self.max_weight * median).floor())


@dataclass(frozen=True)
class Screened:
    """What the guard makes of the records of some clients; rows are clients."""

    record: Any  # (c, width), of which only the rows that are accepted may be used
    accepted: Tensor  # (c,) bool
    clipped: Tensor  # (c,) bool
    sent: Tensor  # norms as they came, (c,), float64
    norms: Tensor  # norms as they are averaged, (c,), float64


@dataclass(frozen=True)
class GuardState:
    """A guard in the course of a run."""

    guard: Guard
    start: float  # norm of the initial model, at least 1: stands for the median before there is one
    medians: tuple[float, ...] = ()  # of the accepted norms of the last rounds, the newest last

    @classmethod
    def new(cls, guard: Guard, method: Method, w: Tensor) -> Self:
        """The guard of a run of `method` that begins at `w` (d,). Raises InputError if nothing is sent there."""
        if not isinstance(guard, Guard):
            raise InputError(f"guard must be a Guard such as Guard(multiple=3.0), got {guard!r}")
        if method.training != "federated":
            raise InputError(f"guard: {type(method).__name__} is {method.training} training, in which no client sends")
        with one_thread(w.device):  # or bits of the norm would depend on the number of threads
            norm = float(torch.linalg.vector_norm(w, dtype=torch.float64))
        return cls(guard, max(norm, 1.0))

    @property
    def bound(self) -> float:
        """The largest norm in the next round."""
        fixed = inf if self.guard.bound is None else self.guard.bound
        if self.guard.multiple is None or (self.guard.bound is not None and not self.medians):
            return fixed
        return min(fixed, self.guard.multiple * (lower_median(self.medians) if self.medians else self.start))

    def screen(self, received: Record, lr_sum: Tensor) -> Screened:
        """Bound the records (c, width) of clients whose step sizes sum to `lr_sum` (c, 1)."""
        ranges, bound = received.ranges(), self.bound
        squared = received.marked("squared_length")
        sent = record_norm(received, lr_sum, frozenset(ranges), squared)
        finite = torch.stack([is_finite(x) for x in received.tensors().values()]).all(0)
        clamped = {name: getattr(received, name).clamp(*limits) for name, limits in ranges.items()}
        beyond = [(x != getattr(received, name)).any(-1) for name, x in clamped.items()]
        wrong = torch.stack([sent[:, 0] > bound, *beyond]).any(0)
        if self.guard.action == "refuse":
            return Screened(received, finite & ~wrong, torch.zeros_like(finite), sent[:, 0], sent[:, 0])
        short = shortened_to(received, sent, bound, squared) if bound < inf else received
        return Screened(replace(short, **clamped), finite, finite & wrong, sent[:, 0], sent[:, 0].clamp(max=bound))

    def updated(self, norms: Sequence[float]) -> Self:
        """The guard after a round whose accepted clients have these `norms`, at least one.

        A round counts with its lower median, which more than half of its clients reach, and of the last rounds the
        lower median counts: so whoever sends as much as is allowed does not raise the bound.
        """
        if self.guard.multiple is None:
            return self
        return replace(self, medians=(*self.medians, lower_median(norms))[-REMEMBERED:])

    def restored(self, medians: Any) -> Self:
        """The guard with what a checkpoint has kept of it. Raises ValueError or TypeError for what is no such thing."""
        found = tuple(float(one) for one in medians)
        if not all(0 <= one < inf for one in found):
            raise ValueError("a norm is negative or not finite")
        return replace(self, medians=found[-REMEMBERED:])


def lower_median(numbers: Sequence[float]) -> float:
    """The largest number that more than half of `numbers` reach or are above."""
    return sorted(numbers)[(len(numbers) - 1) // 2]
