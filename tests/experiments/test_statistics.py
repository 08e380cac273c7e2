"""Means and paired differences over seeds, against formulas and simulated coverage."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.stats import t as student

from fedflat.experiments.statistics import mean_estimate, paired_difference


def test_estimate() -> None:
    e = mean_estimate([1.0, 2.0, 4.0])
    assert (e.mean, e.n) == (pytest.approx(7 / 3), 3)
    assert e.std == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert mean_estimate([5.0]).std is None


def test_paired_interval_is_students() -> None:
    """Mean difference ± t(n - 1) s / sqrt(n), written out."""
    d = paired_difference({0: 1.0, 1: 2.0, 2: 4.0, 9: 7.0}, {0: 0.5, 1: 1.0, 2: 3.5, 8: 7.0})
    differences = np.array([0.5, 1.0, 0.5])
    half = student.ppf(0.975, 2) * differences.std(ddof=1) / sqrt(3)
    assert d is not None
    assert (d.mean, d.n) == (pytest.approx(differences.mean()), 3)
    assert (d.low, d.high) == pytest.approx((differences.mean() - half, differences.mean() + half))


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        seeds = dict(enumerate(rng.normal(0, 1, 3)))
        shifted = {i: v + 0.7 + e for (i, v), e in zip(seeds.items(), rng.normal(0, 0.2, 3), strict=True)}
        d = paired_difference(shifted, seeds)
        covered += d.low <= 0.7 <= d.high
    assert 930 <= covered <= 970


def test_edge_cases() -> None:
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
    one = paired_difference({0: 1.0}, {0: 0.5})
    assert (one.mean, one.low, one.high) == (0.5, None, None)
    same = paired_difference({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5})
    assert (same.low, same.high) == (0.5, 0.5)
