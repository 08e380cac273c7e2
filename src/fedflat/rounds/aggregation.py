"""The weighted mean of what the server receives, summed as it arrives; no bit of it depends on the order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.method import Method
from ..core.records import Record
from .exact_sum import ExactSum


class RunningMean:
    """Adds up stacks of records; holds the sums of one record, however many clients there are."""

    def __init__(self, method: Method, like: Tensor) -> None:
        """`like` (d,) gives width, precision and device."""
        self._record, self.like = method.mean, like.new_empty(0)
        self._uniform = self._record.marked("uniform_mean")
        widths = self._record.widths(like.shape[-1], method)
        self._sums = {name: ExactSum(like.new_empty(1, width)) for name, width in widths.items()}
        self._counts = ExactSum(like.new_empty(1, 3, dtype=torch.float64))  # of local steps, weights and clients

    def add(self, received: Record, steps: Tensor, weights: Tensor) -> None:
        """Add clients' records and local steps (c, 1) with their weights (c, 1), whose sum need not be known.

        Weights are numbers of samples, or ones: in single precision, products with whole numbers are exact.
        """
        ones = torch.ones_like(weights)
        for name, value in received.tensors().items():
            self._sums[name].add(value, ones if name in self._uniform else weights)
        self._counts.add(torch.cat([steps * weights, weights, ones], dim=1), ones)

    def sums(self) -> Iterator[ExactSum]:
        """All that is summed, in an order that is the same everywhere."""
        yield from (*self._sums.values(), self._counts)

    def value(self) -> Any:
        """The mean record."""
        _, weight, clients = self._counts.value()
        means = {name: x.value() / (clients if name in self._uniform else weight) for name, x in self._sums.items()}
        return self._record(**{name: mean.to(self.like.dtype) for name, mean in means.items()})

    @property
    def steps(self) -> Tensor:
        """The weighted mean of local steps, (1,)."""
        steps, weight, _ = self._counts.value()
        mean: Tensor = (steps / weight).to(self.like.dtype)[None]
        return mean
