"""Sums whose bits do not depend on the order of the terms, which come from clients, chunks and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import frexp, isfinite

import torch
from torch import Tensor

AT_ONCE = 2**16  # numbers that are cut at once, few enough for the processor's cache


@dataclass(frozen=True)
class Grid:
    """The places at which numbers are cut into pieces; the unit of place i is 2**(step i).

    A sum keeps `places` adjacent places, from the highest that its terms need.
    """

    places: int
    step: int  # bits from one place to the next; 2**(54 - step) numbers can be added before a place overflows

    @property
    def highest(self) -> int:
        """The highest place whose arithmetic does not overflow."""
        return 970 // self.step - 1

    @property
    def lowest(self) -> int:
        """The lowest place that can be the highest of a sum: the units of the sum's lower places are not subnormal."""
        return -(1020 // self.step) + self.places

    def top(self, largest: float) -> int:
        """Return the highest place that numbers of at most `largest` in absolute value need.

        The unit of the next higher place is at least twice as large as every such number. Zeros fit any place, so for
        them the result is the lowest one.
        """
        if not isfinite(largest):
            return self.highest
        if largest == 0:
            return self.lowest
        return max(self.lowest, min(self.highest, -(-(frexp(largest)[1] + 1) // self.step) - 1))

    def anchor(self, place: int) -> float:
        """Return a number whose last bit is the unit of a place: a number added to it is rounded to that unit."""
        return 1.5 * 2.0 ** (52 + self.step * place)


# The part below the last place is less than 2**-36 of the largest number, for float64 less than 2**-53.
GRIDS = {torch.float64: Grid(places=3, step=26)}
USUAL = Grid(places=2, step=36)


def grid_of(dtype: torch.dtype) -> Grid:
    """Return the grid for sums of numbers of type `dtype`."""
    return GRIDS.get(dtype, USUAL)


class ExactSum:
    """The sum of vectors (d,), with the same bits for any order and grouping of the terms.

    A floating-point sum is rounded at every addition, and so depends on the order. Here numbers are cut at common
    places, and pieces of the same place are added: integers of at most 53 bits times the unit of the place, whose sums
    are exact. The two or three places below the largest number are kept; smaller pieces are dropped for all terms.
    This is the reproducible summation of Demmel and Nguyen (IEEE Transactions on Computers
    64(7), 2015) with one index per vector. Up to 2**18 vectors can be added.
    """

    def __init__(self, like: Tensor) -> None:
        """Start with zero; `like` (*, d) gives width, precision and device of the terms."""
        self._grid = grid_of(like.dtype)
        # The highest place first.
        self.sums = torch.zeros(self._grid.places, like.shape[-1], dtype=torch.float64, device=like.device)
        self._rows = self.sums.unbind()  # one for each place
        self.top = self._grid.lowest

    def add(self, x: Tensor, weights: Tensor) -> None:
        """Add the rows of `x` (c, d), each times its weight (c, 1); the products are rounded to float64."""
        add_all([(self, x, weights)])

    def add_products(self, products: Products, low: float, high: float) -> None:
        """Add the rows of `products`, whose largest absolute value is max(-low, high)."""
        self.raise_to(self._grid.top(max(-low, high)))
        if products.all is not None:
            return self._cut(products.all, self._rows)
        x, columns = products.x, products.columns
        for some, sums in zip(torch.split(x, columns, -1), torch.split(self.sums, columns, -1), strict=True):
            self._cut(some * products.weights, sums.unbind())

    def raise_to(self, top: int) -> None:
        """Make `top` the highest place, if it is higher than the current one; drop the lowest places.

        The result does not depend on when this happens. If `top` had been the highest place from the start, the dropped
        pieces would not have been kept, and the new places would be zero, because all numbers so far are less than half
        of the units of the new places.
        """
        up = top - self.top
        if up <= 0:
            return
        for place in reversed(range(self._grid.places)):
            self.sums[place] = self.sums[place - up] if place >= up else 0.0
        self.top = top

    def value(self) -> Tensor:
        """Return the sum, (d,), in float64."""
        value, *lower = self._rows
        for sums in lower:
            value = value + sums
        return value

    def integers(self) -> Tensor:
        """Return the sums as integer multiples of the units of their places, (places, d), int64.

        In the sum of one vector, the multiples are at most half of 2**step in absolute value. Raises ValueError if a
        multiple is not finite, or has more than 63 bits.
        """
        multiples = self.sums / self._units()
        if not bool((multiples.abs() < 2.0**63).all()):
            raise ValueError("a number is not finite, or beyond the highest place")
        return multiples.to(torch.int64)

    @property
    def limit(self) -> int:
        """The largest absolute value in `integers` for the sum of one vector."""
        return 1 << (self._grid.step - 1)

    def add_integers(self, top: int, integers: Tensor) -> None:
        """Add the `integers` of another sum with highest place `top`, or the total of several such `integers`.

        Raises ValueError if `top` is below the current highest place.
        """
        if top < self.top:
            raise ValueError(f"the highest place is {self.top} already, above {top}")
        self.raise_to(top)
        self.sums += integers.to(self.sums) * self._units()

    def _units(self) -> Tensor:
        """Return the unit of each place, (places, 1), from the highest."""
        units = [2.0 ** (self._grid.step * (self.top - place)) for place in range(self._grid.places)]
        return self.sums.new_tensor(units)[:, None]

    def _cut(self, left: Tensor, sums: Sequence[Tensor]) -> None:
        """Cut `left` (c, n), which is overwritten, and add the pieces to `sums` (n,), from the highest place."""
        *higher, last = (self._grid.anchor(self.top - place) for place in range(self._grid.places))
        for anchor, total in zip(higher, sums, strict=False):
            piece = (left + anchor).sub_(anchor)  # rounded to the unit of the place
            left -= piece
            total.add_(piece.sum(0))
        sums[-1].add_(left.add_(last).sub_(last).sum(0))


class Products:
    """The rows of `x` (c, d), each times its weight (c, 1), rounded to float64; made at once if they are few."""

    def __init__(self, x: Tensor, weights: Tensor) -> None:
        self.x, self.weights = x, weights.double()
        self.columns = max(1, AT_ONCE // len(x)) if x.device.type == "cpu" else x.shape[-1]
        # Small products are made at once: their time depends on the number of calls of torch.
        self.all = x * self.weights if x.shape[-1] <= self.columns else None

    def extremes(self) -> tuple[Tensor, Tensor]:
        """Return two numbers `low` and `high`: max(-low, high) is the largest absolute value of a product."""
        if self.all is not None:
            low, high = self.all.aminmax()
            return low, high
        largest = torch.maximum(self.x.amax(-1, keepdim=True), -self.x.amin(-1, keepdim=True))
        bound = (largest * self.weights.abs()).max()
        return bound, bound


def add_all(parts: Iterable[tuple[ExactSum, Tensor, Tensor]]) -> None:
    """Add to each sum in `parts` the rows of a tensor (c, d), each times its weight (c, 1).

    The host waits for a device once for all sums, to learn the magnitude of the numbers.
    """
    found = [(total, Products(x, weights)) for total, x, weights in parts if x.shape[-1]]
    if not found:
        return
    extremes = torch.stack([x for _, products in found for x in products.extremes()]).tolist()
    for (total, products), low, high in zip(found, extremes[::2], extremes[1::2], strict=True):
        total.add_products(products, low, high)
