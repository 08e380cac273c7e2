from __future__ import annotations

import hashlib
from math import cos, log, pi, sin, sqrt

import numpy as np
import pytest
from scipy.stats import binom, chisquare, kstest, norm

from fedflat.rounds.private_mean import normal_deviates, poisson_sample, seeded_key, system_key

KEY = seeded_key(0, 0)


def test_deviates_are_those_of_box_and_muller() -> None:
    stream = hashlib.shake_256(KEY + b"x").digest(8 * 6)
    u = [(int.from_bytes(stream[8 * i : 8 * i + 8], "little") + 0.5) / 2**64 for i in range(6)]
    radius, angle = [sqrt(-2 * log(one)) for one in u[:3]], [2 * pi * one for one in u[3:]]
    expected = [r * cos(a) for r, a in zip(radius, angle, strict=True)]
    expected += [r * sin(a) for r, a in zip(radius, angle, strict=True)]
    assert normal_deviates(KEY, "x", 5) == pytest.approx(expected[:5], rel=1e-12)


def test_deviates_are_standard_normal_and_independent() -> None:
    x = normal_deviates(KEY, "noise", 200_000)
    assert kstest(x, norm.cdf).pvalue > 1e-3
    assert abs(np.mean(x[:100_000] * x[100_000:])) < 5 / sqrt(100_000)  # the two halves share their radii
    assert abs(np.mean(x[:100_000] ** 2 * x[100_000:] ** 2) - 1) < 5 * sqrt(8 / 100_000)  # variance 9 - 1


def test_every_field_has_noise_of_its_own() -> None:
    one, other = normal_deviates(KEY, "noise of a", 10_000), normal_deviates(KEY, "noise of b", 10_000)
    assert abs(np.mean(one * other)) < 5 / 100


def test_keys_come_from_the_system() -> None:
    assert len({system_key() for _ in range(100)}) == 100


def test_the_number_of_participants_is_binomial_and_may_be_zero() -> None:
    """In 4000 rounds of 20 clients with q = 0.1: each number as often as independent clients have it."""
    numbers = [len(poisson_sample(seeded_key(1, t), 0.1, 20)) for t in range(4000)]
    seen = np.bincount(numbers, minlength=21)
    expected = 4000 * binom.pmf(np.arange(21), 20, 0.1)
    seen, expected = np.append(seen[:6], seen[6:].sum()), np.append(expected[:6], expected[6:].sum())
    assert chisquare(seen, expected).pvalue > 1e-3
    assert seen[0] > 0


def test_every_client_takes_part_equally_often() -> None:
    counts = sum(np.bincount(poisson_sample(seeded_key(2, t), 0.3, 10), minlength=10) for t in range(5000))
    assert np.abs(counts - 1500).max() < 5 * sqrt(5000 * 0.3 * 0.7)


def test_at_rate_one_everybody_takes_part() -> None:
    assert poisson_sample(KEY, 1.0, 5).tolist() == [0, 1, 2, 3, 4]
