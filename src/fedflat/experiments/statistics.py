"""Paired statistics over seeds.

An accuracy on n test samples is a multiple of 1 / n. Its rounding error has the variance 1 / (12 n^2), and the error of
a difference of two accuracies 1 / (6 n^2). Models that hardly differ may have the same rounding error in every seed,
and then more seeds do not reduce it. So the standard error of a mean difference is computed over the seeds, but is at
least 1 / (sqrt(6) n): two seeds with equal differences prove nothing, and an interval is at least 1.6 / n wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class MeanEstimate:
    """The mean and the spread of n values."""

    mean: float
    std: float | None  # sample standard deviation; None for one value
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean of n paired differences and its 95 % confidence interval (Student's t), which needs at least two pairs.

    With fewer pairs, `low`, `high` and `p` are None.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    p: float | None = None  # two-sided p-value of the paired t test


def mean_estimate(values: Sequence[float]) -> MeanEstimate:
    """Return the mean and the sample standard deviation of one or more `values`."""
    a = np.asarray(values, dtype=float)
    with np.errstate(all="ignore"):  # a loss may be infinite, and then its mean is, too
        return MeanEstimate(float(a.mean()), float(a.std(ddof=1)) if len(a) > 1 else None, len(a))


def paired_difference(values: dict[int, float], baseline: dict[int, float], samples: float = inf) -> Difference | None:
    """Compare `values` with `baseline`, both by seed, over the seeds that both have; None without a common seed.

    samples: number of test samples of the accuracies, which limits their precision; inf for exact values.
    """
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        return None
    differences = np.array([values[seed] - baseline[seed] for seed in seeds])
    mean, n = float(differences.mean()), len(seeds)
    if n < 2:
        return Difference(mean, None, None, n)
    from scipy.special import stdtr, stdtrit  # distribution and quantiles of Student's t; slow to import

    of_seeds = 0.0 if np.ptp(differences) == 0 else float(differences.std(ddof=1)) / sqrt(n)
    error = max(of_seeds, 1 / (sqrt(6) * samples))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Difference(mean, mean - half, mean + half, n, p)
