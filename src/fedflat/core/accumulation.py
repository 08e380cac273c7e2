"""Gradients of a batch from its parts, of which one at a time is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .objective import Batch, BatchOracle
from .oracle import MovingStatistics


def in_parts(batch: Batch, size: int) -> list[Batch]:
    """Split `batch`, whose samples have weights, into parts of at most `size` samples.

    The weights of a client sum to 1 over all parts.
    """
    assert batch.weight is not None  # noqa: S101 (for the type checker)
    axis = batch.weight.ndim - 1
    pieces = (torch.split(x, size, dim=axis) for x in (batch.x, batch.y, batch.weight))
    return [Batch(*some) for some in zip(*pieces, strict=True)]


@dataclass(frozen=True)
class AccumulatedOracle:
    """The gradient oracle of a batch in `parts`, see `in_parts`; see `core.oracle.MinibatchOracle`."""

    parts: Sequence[BatchOracle]

    def __call__(self, w: Tensor) -> Tensor:
        """Compute the gradient at `w` (*clients, d)."""
        return _total([part(w) for part in self.parts])

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean loss at `w` without a penalty, (*clients,), float64, and the gradient."""
        return self._with_loss(lambda part: part.with_loss(w))

    def with_statistics(self, moving: MovingStatistics) -> AccumulatedOracle:
        """Return the oracle whose passes with a loss update the running statistics in `moving`, part after part."""
        return self._of(lambda part: part.with_statistics(moving))

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> AccumulatedOracle:
        """Return the oracle of the loss with a teacher's penalty; see `core.oracle.with_teacher`."""
        return self._of(lambda part: part.with_teacher(e, weight, tau))

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        """Return the gradient of a teacher's penalty alone; see `core.oracle.teacher_gradient`."""
        return _total([part.teacher_gradient(w, e, tau) for part in self.parts])

    def teacher_gradient_with_loss(self, w: Tensor, e: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """Compute the mean loss at `w` without the penalty, and the gradient of the penalty alone."""
        return self._with_loss(lambda part: part.teacher_gradient_with_loss(w, e, tau))

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients with respect to `w`, `matrix` and `shift`; see `core.oracle.wrt_inputs`."""
        return self.wrt_inputs_with_loss(w, matrix, shift)[1]

    def wrt_inputs_with_loss(
        self, w: Tensor, matrix: Tensor, shift: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Compute the mean loss on the mapped samples A x + b, and the gradients of `wrt_inputs`."""
        loss, gradients = self._with_loss(lambda part: part.wrt_inputs_with_loss(w, matrix, shift))
        return loss, gradients

    def _of(self, change: Callable[[BatchOracle], BatchOracle]) -> AccumulatedOracle:
        return AccumulatedOracle(tuple(change(part) for part in self.parts))

    def _with_loss(self, ask: Callable[[BatchOracle], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        """Add up what `ask` returns of each part: its mean loss, times the weight of the part, and its gradients."""
        losses, gradients = zip(*map(ask, self.parts), strict=True)
        weighted = [(_share(part), loss) for part, loss in zip(self.parts, losses, strict=True)]
        # The mean over a part without samples, at the end of a stack's short batch, is not a number.
        total = _total([torch.where(share > 0, share * loss, 0.0) for share, loss in weighted])
        if isinstance(gradients[0], Tensor):
            return total, _total(gradients)
        return total, tuple(_total(some) for some in zip(*gradients, strict=True))


def _share(part: BatchOracle) -> Tensor:
    """Return the weight of the part in each client's batch, (*clients,), float64."""
    assert part.batch.weight is not None  # noqa: S101 (for the type checker)
    return part.batch.weight.sum(-1, dtype=torch.float64)


def _total(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, first to last."""
    first, *others = tensors
    for other in others:
        first = first + other
    return first
