"""Bounds on what one client can do to the mean: on the norm of its record or of each field, and on its weight."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, Literal, Self

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper
from ..core.method import Method
from ..core.records import Record, is_finite, record_norm, shortened_to
from .device import one_thread

REMEMBERED = 9  # rounds whose medians of norms are kept; their median is an honest client's norm if five of them are


@by_name
@dataclass(frozen=True, kw_only=True)
class Guard:
    """Bounds the norm of a client's record, and the weight of a client.

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
        """Raise InputError, naming the field, for a guard that bounds nothing."""
        check(self, "guard")
        if not self.bounds_norms and (self.max_weight is None or self.max_weight == inf):
            raise InputError(
                "guard: nothing is bounded; give bound (such as 3.0), multiple (such as 3.0) or max_weight"
            )

    @property
    def bounds_norms(self) -> bool:
        """Whether the guard bounds norms, and not only weights."""
        return any(value is not None and isfinite(value) for value in (self.bound, self.multiple))

    def limited(self, weights: Tensor) -> Tensor:
        """Limit the weights (c, 1) of all clients of a round to `max_weight` times their lower median.

        The limited weights are integers, so that products with them are exact.
        """
        if self.max_weight is None or self.max_weight == inf:
            return weights
        median = weights.flatten().sort().values[(len(weights) - 1) // 2]
        return torch.minimum(weights, (self.max_weight * median).floor())


@dataclass(frozen=True)
class Screened:
    """The records of some clients after the guard has bounded them; rows are clients."""

    record: Any  # (c, width); only accepted rows may be used
    accepted: Tensor  # (c,) bool
    clipped: Tensor  # (c,) bool
    sent: Tensor  # norms before clipping, (c,), float64
    norms: Tensor  # norms after clipping, (c,), float64


@dataclass(frozen=True)
class GuardState:
    """The current bounds on the norms of entire records (by the guard) and, in a federation, of each field."""

    guard: Guard | None
    start: float  # norm of the initial model, at least 1; used as long as no norms of clients are known
    medians: tuple[float, ...] = ()  # of the accepted norms of the last rounds, the newest last
    field_multiple: float | None = None  # bound of each field, as a multiple of `field_norms`; inf is no bound
    field_norms: Mapping[str, float] = field(default_factory=dict)  # the largest median of a round's norms, by field

    @classmethod
    def new(cls, guard: Guard | None, method: Method, w: Tensor, field_multiple: float | None = None) -> Self:
        """Return the first bounds on norms in a run of `method` that begins at the model `w` (d,).

        If the guard bounds norms, `field_multiple` is ignored. Raises InputError for a guard with a method that is not
        federated, because its clients send nothing.
        """
        if guard is not None and not isinstance(guard, Guard):
            raise InputError(f"guard must be a Guard such as Guard(multiple=3.0), got {guard!r}")
        if guard is not None and method.training != "federated":
            raise InputError(f"guard: {type(method).__name__} is {method.training} training, in which no client sends")
        with one_thread(w.device):  # or bits of the norm would depend on the number of threads
            norm = float(torch.linalg.vector_norm(w, dtype=torch.float64))
        bounded = guard is not None and guard.bounds_norms
        return cls(guard, max(norm, 1.0), field_multiple=None if bounded else field_multiple)

    @property
    def bound(self) -> float:
        """The largest norm of a record in the next round."""
        if self.guard is None:
            return inf
        fixed = inf if self.guard.bound is None else self.guard.bound
        if self.guard.multiple is None or (self.guard.bound is not None and not self.medians):
            return fixed
        return min(fixed, self.guard.multiple * (lower_median(self.medians) if self.medians else self.start))

    def limited(self, weights: Tensor) -> Tensor:
        """Return the weights (c, 1) of all clients of a round as limited by the guard, if there is one."""
        return weights if self.guard is None else self.guard.limited(weights)

    def excess(self, norms: Mapping[str, float], gradients: Collection[str], lr_sum: float) -> str:
        """Describe the first of a client's fields whose norm exceeds the field's bound; "" if there is none.

        norms: the norm of each field. gradients: the names of fields that scale as gradients. lr_sum: the sum of the
        client's step sizes. The server's mean obeys the same bounds: its weights are positive and sum to 1, so it is a
        convex combination, and its norm is at most the largest norm of a client.
        """
        if self.field_multiple is None:
            return ""
        for name, norm in norms.items():
            # A gradient of norm `start / lr_sum` moves the model by `start` in the client's local steps.
            start = self.start / lr_sum if name in gradients else self.start
            bound = self.field_multiple * max(self.field_norms.get(name, 0.0), start)
            if not norm <= bound:
                return (f"{name}: norm is {norm:.3g}, at most {bound:.3g} is allowed, "
                        f"norm-multiple = {self.field_multiple:g} times the largest seen before")  # fmt: skip
        return ""

    def screen(self, received: Record, lr_sum: Tensor) -> Screened:
        """Bound the records (c, width) of clients whose step sizes sum to `lr_sum` (c, 1). Needs a guard."""
        assert self.guard is not None  # noqa: S101
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

    def updated(self, norms: Sequence[float], fields: Sequence[Mapping[str, float]] = ()) -> Self:
        """Return the bounds after a round whose accepted clients have these `norms`, at least one.

        fields: the norms of each client's fields, by name. Each round contributes the lower median of its norms, which
        more than half of its clients reach; so a few clients that send the largest allowed norm do not raise the bound.
        The bound for entire records uses the lower median of recent rounds' medians, the bound for a field the maximum
        of all rounds' medians.
        """
        medians, field_norms = self.medians, dict(self.field_norms)
        if self.guard is not None and self.guard.multiple is not None:
            medians = (*medians, lower_median(norms))[-REMEMBERED:]
        for name in fields[0] if fields and self.field_multiple is not None else ():
            field_norms[name] = max(field_norms.get(name, 0.0), lower_median([one[name] for one in fields]))
        return replace(self, medians=medians, field_norms=field_norms)

    def restored(self, medians: Any) -> Self:
        """Return the guard with the medians of a checkpoint. Raises ValueError or TypeError for malformed ones."""
        found = tuple(float(one) for one in medians)
        if not all(0 <= one < inf for one in found):
            raise ValueError("a norm is negative or not finite")
        return replace(self, medians=found[-REMEMBERED:])


def lower_median(numbers: Sequence[float]) -> float:
    """Return the largest number that more than half of `numbers` reach or exceed."""
    return sorted(numbers)[(len(numbers) - 1) // 2]
