"""The weighted mean of the records that the server receives; no bit of it depends on the order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.local import has_schedule
from ..core.method import Method
from ..core.records import Record
from ..data.preparation import to_device
from ..data.types import Index
from .exact_sum import ExactSum, add_all

Weights = Literal["uniform", "samples"]


def mean_weights(kind: str, sizes: Index, device: torch.device) -> Tensor:
    """Return the weights of clients with `sizes` samples (c,) in the mean, (c, 1), float64: ones or `sizes`."""
    weights = np.ones(len(sizes)) if kind == "uniform" else sizes.astype(float)
    return to_device(torch.from_numpy(weights), device)[:, None]


class RunningMean:
    """The mean of records that are added in stacks; it takes the memory of one record for any number of clients."""

    def __init__(self, method: Method, like: Tensor) -> None:
        """Start with zero; `like` (d,) gives width, precision and device."""
        self._record, self.like = method.mean, like.new_empty(0)
        self._uniform = self._record.marked("uniform_mean")
        widths = self._record.widths(like.shape[-1], method)
        self._sums = {name: ExactSum(like.new_empty(1, width)) for name, width in widths.items()}
        self._lr_factors = ExactSum(like.new_empty(1, 1)) if has_schedule(method) else None
        # Sums: of weighted local steps, of weights, and the number of clients. They are integers: no sum is rounded.
        self.counts = like.new_zeros(3, dtype=torch.float64)

    def add(self, received: Record, steps: Tensor, weights: Tensor, lr_factors: Tensor | None = None) -> None:
        """Add clients' records and local steps (c, 1) with weights (c, 1); the sum of all weights need not be known.

        lr_factors: for each client, the sum over its steps of the factors on the step size, (c, 1). By default these
        are the numbers of steps, as without a schedule.

        Weights are integers (numbers of samples, or ones), so that products with single-precision numbers are exact.
        """
        ones = torch.ones_like(weights)
        parts = [
            (self._sums[name], value, ones if name in self._uniform else weights)
            for name, value in received.tensors().items()
        ]
        self._add(parts, steps, weights, lr_factors)

    def count(self, steps: Tensor, weights: Tensor, lr_factors: Tensor) -> None:
        """Add steps and weights as `add` does, but no records; the caller adds the records to `record_sums`."""
        self._add([], steps, weights, lr_factors)

    def _add(
        self, parts: list[tuple[ExactSum, Tensor, Tensor]], steps: Tensor, weights: Tensor, lr_factors: Tensor | None
    ) -> None:
        if self._lr_factors is not None:
            parts.append((self._lr_factors, steps if lr_factors is None else lr_factors, weights))
        add_all(parts)
        self.counts += torch.cat([steps * weights, weights, torch.ones_like(weights)], dim=1).sum(0)

    @property
    def record_sums(self) -> Mapping[str, ExactSum]:
        """The sums of the record's fields, by name."""
        return self._sums

    def sums(self) -> Iterator[ExactSum]:
        """Yield all exact sums, in an order that is the same in every process."""
        yield from self._sums.values()
        if self._lr_factors is not None:
            yield self._lr_factors

    def value(self) -> Any:
        """Return the mean record."""
        _, weight, clients = self.counts
        means = {name: x.value() / (clients if name in self._uniform else weight) for name, x in self._sums.items()}
        return self._record(**{name: mean.to(self.like.dtype) for name, mean in means.items()})

    @property
    def steps(self) -> Tensor:
        """The weighted mean of local steps, (1,)."""
        steps, weight, _ = self.counts
        mean: Tensor = (steps / weight).to(self.like.dtype)[None]
        return mean

    @property
    def lr_factors(self) -> Tensor:
        """The weighted mean of the sums of the factors on the step size, (1,); without a schedule, `steps`."""
        if self._lr_factors is None:
            return self.steps
        mean: Tensor = (self._lr_factors.value() / self.counts[1]).to(self.like.dtype)
        return mean
