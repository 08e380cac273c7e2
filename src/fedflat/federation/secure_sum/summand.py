"""A client's summand: integers at places, of each field of its record and of its own figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.method import Method
from ...rounds.aggregation import RunningMean
from ...rounds.exact_sum import ExactSum, Grid, grid_of
from .keys import WORD, Words

FIGURES = ("drift", "clipped")  # of a client's round, which are summed besides
FIGURES_FIELD = "figures"
Integers = NDArray[np.int64]


class SummandLayout:
    """The layout of the sums of a method's record, and of the figures, in one vector of words."""

    def __init__(self, method: Method, like: Tensor) -> None:
        """`like` (d,) gives size and precision."""
        widths = method.mean.widths(like.shape[-1], method)
        sums = {f"mean.{name}": (grid_of(like.dtype), width) for name, width in widths.items() if width}
        self.sums: dict[str, tuple[Grid, int]] = {
            **sums, FIGURES_FIELD: (grid_of(torch.float64), len(FIGURES))
        }  # fmt: skip

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(places, width) of each sum."""
        return {name: (grid.places, width) for name, (grid, width) in self.sums.items()}


def summand(mean: RunningMean, figures: Mapping[str, float]) -> dict[str, ExactSum]:
    """Return the sums of `SummandLayout` of one client, whose weighted record is in `mean`."""
    found = {f"mean.{name}": one for name, one in mean.record_sums.items() if one.sums.shape[-1]}
    found[FIGURES_FIELD] = figures_sum()
    row = torch.tensor([[figures.get(name, 0.0) for name in FIGURES]], dtype=torch.float64)
    found[FIGURES_FIELD].add(row, torch.ones(1, 1, dtype=torch.float64))
    return found


def figures_sum() -> ExactSum:
    """Return an empty sum of figures."""
    return ExactSum(torch.empty(1, len(FIGURES), dtype=torch.float64))


def lowered(integers: Integers, up: int) -> Integers:
    """Return integers (places, width) with the highest place `up` places higher, as `ExactSum.raise_to`."""
    found = np.zeros_like(integers)
    if up < len(integers):
        found[up:] = integers[: len(integers) - up]
    return found


def joined(parts: Sequence[Integers]) -> Words:
    """Return all sums in one vector of words modulo 2**64."""
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts]).astype("<i8").view(WORD)


def separated(words: Words, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Words]:
    """Return each sum (places, width) by name, the inverse of `joined`; views of `words`."""
    found, start = {}, 0
    for name, (places, width) in shapes.items():
        found[name] = words[start : start + places * width].reshape(places, width)
        start += places * width
    return found
