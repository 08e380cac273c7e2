from __future__ import annotations

from fractions import Fraction
from math import sqrt

import pytest
import torch

from fedflat.core.method import Context
from fedflat.core.records import Record, Scalar, Vector, gradient_scale
from fedflat.methods import find
from fedflat.rounds.private_mean import PrivateMean, seeded_key

CLIP, NOISE, LR, STEPS = 0.5, 2.0, 0.0625, 4  # so that a gradient counts a quarter


class Sent(Record):
    delta: Vector
    gradient: Vector = gradient_scale()
    length: Scalar


class Sending(find("FedAvg"), mean=Sent):
    pass


def private(d: int = 3, dtype: torch.dtype = torch.float32, expected: float = 4.0, t: int = 0) -> PrivateMean:
    ctx = Context(t=0, lr=LR, share=0.1)
    like = torch.zeros(d, dtype=dtype)
    return PrivateMean(Sending(), like, ctx, STEPS, CLIP, NOISE, expected, lambda digest: seeded_key(3, t))


def sent(clients: int, d: int = 3, scale: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float32) -> Sent:
    draw = torch.Generator().manual_seed(seed)
    delta, gradient = (scale * torch.randn(clients, d, generator=draw, dtype=dtype) for _ in range(2))
    return Sent(delta, gradient, scale * torch.rand(clients, 1, generator=draw, dtype=dtype))


def add(mean: PrivateMean, record: Sent) -> PrivateMean:
    ones = torch.ones(len(record.delta), 1)
    mean.add(record, STEPS * ones, ones.double(), STEPS * ones)
    return mean


def exact_square(record: Sent, row: int) -> Fraction:
    """The squared norm of a client's record in the unit of parameters, without any rounding."""
    units = {"delta": Fraction(1), "gradient": Fraction(LR * STEPS), "length": Fraction(1)}
    tensors = record.tensors().items()
    return sum((units[name] * Fraction(float(v))) ** 2 for name, x in tensors for v in x[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 0.2, 1.0, 1e6, 1e18])
def test_no_record_is_longer_than_the_bound_to_the_last_bit(scale: float, dtype: torch.dtype) -> None:
    bounded = private(d=40, dtype=dtype).bounded(sent(20, 40, scale, dtype=dtype))
    assert all(exact_square(bounded, row) <= Fraction(CLIP) ** 2 for row in range(20))


def test_a_long_record_keeps_its_direction_and_a_short_one_its_numbers() -> None:
    long, short = sent(5, scale=100.0), sent(5, scale=0.01)
    bounded = private().bounded(long)
    for row in range(5):
        assert float(exact_square(bounded, row)) == pytest.approx(CLIP**2, rel=1e-5)
        assert bounded.gradient[row] / bounded.delta[row] == pytest.approx(
            long.gradient[row] / long.delta[row], rel=1e-3
        )
    torch.testing.assert_close(private().bounded(short).delta, short.delta, rtol=0, atol=CLIP * NOISE * 2**-20)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 3e38])
def test_a_record_that_is_not_finite_counts_as_nothing(bad: float) -> None:
    record = sent(2)
    record.delta[0, 0] = bad
    bounded = private().bounded(record)
    assert all(x.isfinite().all() for x in bounded.tensors().values())
    assert exact_square(bounded, 0) <= Fraction(CLIP) ** 2


def test_one_client_more_moves_the_sum_by_its_bounded_record_exactly() -> None:
    """Whatever the others send, and in whatever order: no bit of the others' sum depends on this client."""
    others, one = sent(50, scale=3.0), sent(1, scale=1e9, seed=1)
    bounded = private().bounded(one)
    with_it, without = add(add(private(), one), others), add(private(), others)
    for name, x, y in zip(bounded.tensors(), with_it.sums(), without.sums(), strict=True):
        difference = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(x.value(), y.value(), strict=True)]
        assert difference == [Fraction(float(v)) for v in getattr(bounded, name)[0]]


def test_the_noise_has_the_stated_deviation_in_the_unit_of_each_field() -> None:
    d, expected = 20_000, 4.0
    nobody = private(d=d, dtype=torch.float64, expected=expected).value()
    for name, unit in (("delta", 1.0), ("gradient", LR * STEPS)):
        found = float(getattr(nobody, name).std()) * expected
        assert found == pytest.approx(NOISE * CLIP / unit, rel=5 / sqrt(2 * d))


def test_no_difference_of_two_fields_is_without_noise() -> None:
    """Where a method sends one vector twice, or in two units, noise that they shared would cancel."""
    nobody = private(d=10_000, dtype=torch.float64).value()
    both = torch.stack([nobody.delta, nobody.gradient])
    assert abs(float(both.corrcoef()[0, 1])) < 5 / 100


def test_the_divisor_does_not_depend_on_who_took_part() -> None:
    """With the same noise, the mean of some minus the mean of nobody is their sum over the expected number."""
    nobody = private(dtype=torch.float64).value()
    for clients in (1, 3, 17):
        record = sent(clients, scale=0.01, dtype=torch.float64)
        mean = add(private(dtype=torch.float64), record)
        torch.testing.assert_close(mean.value().delta - nobody.delta, record.delta.sum(0) / 4, rtol=0, atol=1e-6)
        assert (mean.steps.tolist(), mean.lr_factors.tolist()) == ([STEPS], [STEPS])


def test_what_is_told_lies_on_a_grid_that_the_settings_alone_decide() -> None:
    """No last bits tell a sum apart from another: mean times divisor is a whole number of grid units."""
    for record in (sent(1, scale=1e-3, dtype=torch.float64), sent(9, scale=1e3, dtype=torch.float64)):
        mean = add(private(dtype=torch.float64), record)
        total = mean.value().delta * 4.0  # a power of two, so that dividing by it lost nothing
        unit = 2.0 ** (0 - 20)  # below noise times clip, which is 1
        assert torch.equal(total / unit, (total / unit).round())


def test_rounds_have_noise_of_their_own_and_one_round_always_the_same() -> None:
    first, again, second = private(t=0), private(t=0), private(t=1)
    assert torch.equal(first.value().delta, again.value().delta)
    assert torch.equal(first.value().delta, first.value().delta)
    assert not torch.equal(first.value().delta, second.value().delta)
