"""Whole numbers of a client's sums: added modulo 2**64 they are the exact sum of all clients, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.federation.secure_sum.messages import joined, lowered, separated
from fedflat.rounds.exact_sum import ExactSum, grid_of


def rows(dtype: torch.dtype, clients: int = 7, width: int = 40) -> torch.Tensor:
    """Numbers of all magnitudes, some of them zero, each client's with another largest one."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(clients, width, generator=rng, dtype=torch.float64)
    x *= 2.0 ** torch.randint(-80, 60, (clients, width), generator=rng)
    x *= 2.0 ** (torch.arange(clients) * -15)[:, None]
    return (x * (torch.rand(clients, width, generator=rng) > 0.1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_of_whole_numbers_is_the_exact_sum(dtype: torch.dtype) -> None:
    x, weights = rows(dtype), torch.arange(1.0, 8.0, dtype=torch.float64)[:, None]
    whole = ExactSum(x)
    whole.add(x, weights)
    alone = [ExactSum(x[:1]) for _ in x]
    for one, row, weight in zip(alone, x, weights, strict=True):
        one.add(row[None], weight[None])
    top = max(one.top for one in alone)
    assert len({one.top for one in alone}) > 2, "places that are the same for all would show nothing"
    words = sum(joined([lowered(one.integers().numpy(), top - one.top)]) for one in alone)
    total = ExactSum(x)
    total.add_integers(top, torch.from_numpy(words.view("<i8").reshape(total.sums.shape)))
    assert total.top == whole.top
    assert torch.equal(total.sums, whole.sums)
    assert torch.equal(total.value(), whole.value())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_raising_whole_numbers_is_raising_the_sum(dtype: torch.dtype) -> None:
    for up in range(6):
        one = ExactSum(rows(dtype))
        one.add(rows(dtype), torch.ones(7, 1))
        before = one.integers().numpy()
        one.raise_to(one.top + up)
        assert np.array_equal(lowered(before, up), one.integers().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_whole_number_of_one_client_is_beyond_half_a_step(dtype: torch.dtype) -> None:
    """So the sum of as many clients as can be added is far from 2**63, and one that is beyond it is a lie."""
    limit = 2 ** (grid_of(dtype).step - 1)
    for power in range(-60, 61):
        x = torch.tensor([[2.0**power, -(2.0**power), 2.0**power * (1 - 2.0**-20), 1e-9]], dtype=dtype)
        one = ExactSum(x)
        one.add(x, torch.ones(1, 1))
        assert int(one.integers().abs().max()) <= limit


def test_places_that_are_too_low_are_refused() -> None:
    one = ExactSum(torch.ones(1, 3))
    one.add(torch.full((1, 3), 1e20), torch.ones(1, 1))
    with pytest.raises(ValueError, match="the highest place is 1 already, above 0"):
        one.add_integers(0, torch.zeros(2, 3, dtype=torch.int64))


def test_joined_sums_come_apart() -> None:
    parts = [np.arange(-6, 6).reshape(2, 6), np.arange(3, 9).reshape(3, 2) * -(2**40)]
    words = joined(parts)
    found = separated(words, {"a": (2, 6), "b": (3, 2)})
    assert [np.array_equal(found[name].view("<i8"), part) for name, part in zip("ab", parts, strict=True)] == [True] * 2
    found["b"][:] = 0
    assert not words[12:].any(), "they are views"
