"""The weighted mean of what clients send, summed as it arrives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.local import LocalResult
from ..core.records import Record


class RunningMean:
    """Adds up stacks of up records; holds one record, however many clients there are."""

    def __init__(self, up: type[Record], clients: int) -> None:
        """`clients` is the size of the whole cohort."""
        self._uniform = up.marked("uniform_mean")
        self._clients = clients
        self._up: dict[str, Tensor] = {}
        self._record = up
        self.steps: Tensor | float = 0.0

    def add(self, result: LocalResult, weights: Tensor) -> None:
        """Add the clients of `result` with their aggregation weights (c, 1), which sum to 1 over the cohort."""
        equal = torch.full_like(weights, 1 / self._clients)
        for name, value in result.up.tensors().items():
            part = (value * (equal if name in self._uniform else weights)).sum(0)
            self._up[name] = self._up[name] + part if name in self._up else part
        self.steps = self.steps + (result.steps * weights).sum(0)

    def value(self) -> Any:
        """The mean record."""
        return self._record(**self._up)
