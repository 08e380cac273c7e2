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

    def __init__(self, method: Method, like: Tensor, clients: int) -> None:
        """`like` (d,) gives width, precision and device; `clients` is the size of the whole cohort."""
        self._record, self._like, self._clients = method.mean, like.new_empty(0), clients
        self._uniform = self._record.marked("uniform_mean")
        widths = self._record.widths(like.shape[-1], method)
        self._sums = {name: ExactSum(like.new_empty(1, width)) for name, width in widths.items()}
        self._steps = ExactSum(like.new_empty(1, 1))

    def add(self, received: Record, steps: Tensor, weights: Tensor) -> None:
        """Add clients' records and local steps (c, 1) with their aggregation weights (c, 1).

        The weights sum to 1 over the whole cohort.
        """
        equal = torch.full_like(weights, 1 / self._clients)
        for name, value in received.tensors().items():
            self._sums[name].add(value, equal if name in self._uniform else weights)
        self._steps.add(steps, weights)

    def sums(self) -> Iterator[ExactSum]:
        """All that is summed, in an order that is the same everywhere."""
        yield from (*self._sums.values(), self._steps)

    def value(self) -> Any:
        """The mean record."""
        return self._record(**{name: x.value().to(self._like.dtype) for name, x in self._sums.items()})

    @property
    def steps(self) -> Tensor:
        """The weighted mean of local steps, (1,)."""
        return self._steps.value().to(self._like.dtype)
