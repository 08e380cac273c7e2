"""Exact sums: the bits of fractions, whatever the order, the groups and the scales."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedflat.rounds.exact_sum import GRIDS, USUAL, ExactSum

PRECISIONS = [torch.float32, torch.float64]


def grid(dtype: torch.dtype):
    return GRIDS.get(dtype, USUAL)


def rows(dtype: torch.dtype, seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Forty rows of many magnitudes, with weights."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 33, generator=random) * 10.0 ** torch.randint(-9, 3, (40, 33), generator=random) * scale
    weights = torch.rand(40, 1, generator=random, dtype=torch.float64)
    return x.to(dtype), weights / weights.sum()


def summed(x: torch.Tensor, weights: torch.Tensor, cuts: list[int]) -> ExactSum:
    total = ExactSum(x)
    for start, end in zip([0, *cuts], [*cuts, len(x)], strict=True):
        if end > start:
            total.add(x[start:end], weights[start:end])
    return total


@pytest.mark.parametrize("dtype", PRECISIONS)
@given(order=st.permutations(range(40)), cuts=st.lists(st.integers(0, 40), max_size=6), scale=st.integers(-30, 30))
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_groups_change_a_bit(dtype: torch.dtype, order, cuts, scale: int) -> None:
    x, weights = rows(dtype, scale=10.0**scale if dtype == torch.float64 else 1.0)
    at_once = summed(x, weights, [])
    other = summed(x[order], weights[order], sorted(cuts))
    assert torch.equal(at_once.value(), other.value())
    assert at_once.top == other.top
    assert torch.equal(at_once.sums, other.sums)


@pytest.mark.parametrize("dtype", PRECISIONS)
@given(mantissa=st.floats(0.5, 1.0, exclude_max=True), exponent=st.integers(-900, 900))
@example(mantissa=1 - 2**-53, exponent=36)
@example(mantissa=1 - 2**-53, exponent=26)
@example(mantissa=0.5, exponent=36)
@example(mantissa=0.5, exponent=26)
def test_the_highest_place_is_the_first_that_is_high_enough(dtype: torch.dtype, mantissa: float, exponent: int) -> None:
    """The unit of the place above is more than twice the largest number; that of the place itself is not."""
    largest, step = Fraction(mantissa) * Fraction(2) ** exponent, grid(dtype).step
    top = grid(dtype).top(float(largest))
    assert Fraction(2) ** (step * (top + 1)) > 2 * largest
    assert Fraction(2) ** (step * top) <= 2 * largest


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("scale", [1e-12, 1.0])
def test_a_row_of_zeros_changes_no_bit_wherever_it_comes(dtype: torch.dtype, scale: float) -> None:
    """Such as the field of a client that does not move, alone in its group, among small numbers of others."""
    x, weights = rows(dtype, scale=scale)
    expected = summed(x, weights, [])
    zeros, share = torch.zeros_like(x[:1]), weights[:1]
    for place in (0, 20, 40):
        together, shares = (
            torch.cat([x[:place], zeros, x[place:]]),
            torch.cat([weights[:place], share, weights[place:]]),
        )
        for cuts in ([], [place, place + 1]):
            found = summed(together, shares, cuts)
            assert torch.equal(found.sums, expected.sums)
            assert found.top == expected.top


def test_a_plain_sum_depends_on_the_order() -> None:
    """What the other test would not notice, if these rows were too simple."""
    x, weights = rows(torch.float32)
    one, other = ((x[order] * weights[order]).sum(0) for order in (torch.arange(40), torch.arange(39, -1, -1)))
    assert not torch.equal(one, other)
    each = list(accumulate((x.double() * weights).unbind()))[-1]
    backwards = list(accumulate((x.double() * weights).flip(0).unbind()))[-1]
    assert not torch.equal(each, backwards)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_error_is_that_of_what_lies_below_the_last_place(dtype: torch.dtype) -> None:
    """Against exact fractions: half a unit of the last place for each row, and three roundings of the result."""
    x, weights = rows(dtype, seed=1)
    total = summed(x, weights, [7, 20])
    products = x.double() * weights
    unit = Fraction(2) ** (grid(dtype).step * (total.top - grid(dtype).places + 1))
    largest = Fraction(float(products.abs().max()))
    assert unit < largest / 2 ** (36 if dtype == torch.float32 else 52), "as the class says"
    for j in range(x.shape[1]):
        exact = sum(Fraction(float(v)) for v in products[:, j])
        rounding = 3 * Fraction(2) ** -53 * abs(exact)
        assert abs(Fraction(float(total.value()[j])) - exact) <= 40 * unit / 2 + rounding


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_whole_numbers_are_summed_exactly(dtype: torch.dtype) -> None:
    x = torch.randint(-1000, 1000, (3000, 5)).to(dtype)
    assert torch.equal(summed(x, torch.ones(3000, 1), [1, 2, 1500]).value(), x.double().sum(0))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_large_number_that_comes_late_leaves_what_it_would_have_left_first(dtype: torch.dtype) -> None:
    small, large = torch.full((1, 4), 1 / 3, dtype=dtype), torch.full((1, 4), 1e30, dtype=dtype)
    ones = torch.ones(1, 1)
    late, early = ExactSum(small), ExactSum(small)
    for total, order in ((late, (small, small, large)), (early, (large, small, small))):
        for x in order:
            total.add(x, ones)
    assert torch.equal(late.sums, early.sums)
    assert late.top == early.top


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_sums_of_parts_are_added_at_the_same_place(dtype: torch.dtype) -> None:
    """As ranks do: raise all to the highest place there is, and add."""
    x, weights = rows(dtype, seed=2)
    whole = summed(x, weights, [])
    parts = [summed(x[rows], weights[rows], []) for rows in (slice(0, 3), slice(3, 30), slice(30, 40))]
    top = max(part.top for part in parts)
    for part in parts:
        part.raise_to(top)
    assert torch.equal(sum(part.sums for part in parts), whole.sums)


def test_long_vectors_are_cut_piece_by_piece() -> None:
    x, ones = torch.randn(3, 100_000), torch.ones(3, 1)
    total = summed(x, ones, [])
    for some in (slice(0, 10), slice(21_840, 21_850), slice(99_990, 100_000)):
        alone = ExactSum(x[:, some])
        alone.raise_to(total.top)
        alone.add(x[:, some], ones)
        assert torch.equal(total.value()[some], alone.value())


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_does_not_vanish(value: float) -> None:
    x = torch.tensor([[1.0, value], [2.0, 3.0]])
    total = summed(x, torch.ones(2, 1), []).value()
    assert not total[1].isfinite()


@pytest.mark.parametrize("value", [3e38, 1e-45, 0.0])
def test_the_ends_of_the_range(value: float) -> None:
    x = torch.tensor([[value], [value]])
    assert float(summed(x, torch.ones(2, 1), [1]).value()) == 2 * float(x[0].double())


def test_no_number_at_all() -> None:
    total = ExactSum(torch.empty(2, 0))
    total.add(torch.empty(2, 0), torch.ones(2, 1))
    assert total.value().shape == (0,)
