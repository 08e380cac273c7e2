from __future__ import annotations

from fractions import Fraction

import torch

from fedflat.core.records import Record, Vector, uniform_mean
from fedflat.methods import find
from fedflat.rounds.aggregation import RunningMean


class Up(Record):
    a: Vector
    b: Vector = uniform_mean()


class Averaging(find("FedAvg"), mean=Up):
    pass


def test_chunks_add_up_to_the_weighted_and_the_equal_mean() -> None:
    x, weights = torch.randn(5, 3).double(), torch.tensor([1.0, 2.0, 3.0, 7.0, 5.0]).double()[:, None]
    steps = torch.arange(1.0, 6.0).double()[:, None]
    mean = RunningMean(Averaging(), x[0])
    for part in (slice(0, 2), slice(2, 5)):
        mean.add(Up(x[part], x[part]), steps[part], weights[part])
    torch.testing.assert_close(mean.value().a, (weights * x).sum(0) / 18)
    torch.testing.assert_close(mean.value().b, x.mean(0))
    assert mean.steps.tolist() == [(1 + 4 + 9 + 28 + 25) / 18]


def test_in_single_precision_the_mean_is_the_true_one_rounded() -> None:
    """Products with numbers of samples are exact, and so is the sum: what is left are the division and one rounding."""
    x, sizes = torch.randn(50, 20), torch.randint(1, 1000, (50, 1)).double()
    mean = RunningMean(Averaging(), x[0])
    mean.add(Up(x, x), torch.ones(50, 1), sizes)
    total = int(sizes.sum())
    for j in range(20):
        exact = sum(Fraction(float(v)) * int(n) for v, n in zip(x[:, j], sizes, strict=True)) / total
        found = Fraction(float(mean.value().a[j]))
        assert abs(found - exact) <= abs(exact) * Fraction(2) ** -24 + Fraction(2) ** -34
