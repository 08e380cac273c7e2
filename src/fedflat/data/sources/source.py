"""What a source returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Source:
    """A labelled set with its test set, before it is split over clients."""

    x: Tensor  # (n, *shape) float32
    y: Tensor  # (n,) int64
    test: tuple[Tensor, Tensor]  # x (m, *shape), y (m,)
    classes: int
