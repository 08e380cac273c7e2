"""The weighted mean of what the server receives, summed as it arrives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.records import Record


class RunningMean:
    """Adds up stacks of records; holds one record, however many clients there are."""

    def __init__(self, record: type[Record], clients: int) -> None:
        """`clients` is the size of the whole cohort."""
        self._uniform = record.marked("uniform_mean")
        self._clients = clients
        self._sums: dict[str, Tensor] = {}
        self._record = record
        self.steps: Tensor | float = 0.0

    def add(self, received: Record, steps: Tensor, weights: Tensor) -> None:
        """Add clients' records and local steps (c, 1) with their aggregation weights (c, 1).

        The weights sum to 1 over the whole cohort.
        """
        equal = torch.full_like(weights, 1 / self._clients)
        for name, value in received.tensors().items():
            part = (value * (equal if name in self._uniform else weights)).sum(0)
            self._sums[name] = self._sums[name] + part if name in self._sums else part
        self.steps = self.steps + (steps * weights).sum(0)

    def value(self) -> Any:
        """The mean record."""
        return self._record(**self._sums)
