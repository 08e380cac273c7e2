"""Statistics that the studies share: Holm's correction, power, and rank correlations with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from scipy.optimize import brentq
from scipy.stats import ncf, rankdata
from scipy.stats import t as student

LEVEL = 0.05
POWER = 0.8
DRAWS, SEED = 10_000, 0  # of the bootstrap


@dataclass(frozen=True)
class Correlation:
    """A rank correlation with a bootstrap interval at 95 %."""

    value: float
    low: float
    high: float
    methods: int  # that it is over


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down correction of p-values; a missing one counts as a test that rejects nothing."""
    known = [1.0 if one is None else one for one in p]
    corrected, highest = list(known), 0.0
    for rank, place in enumerate(sorted(range(len(known)), key=known.__getitem__)):
        highest = max(highest, min(1.0, (len(known) - rank) * known[place]))
        corrected[place] = highest
    return [None if raw is None else value for raw, value in zip(p, corrected, strict=True)]


def power(effect: float, deviation: float, n: int, level: float = LEVEL) -> float:
    """Return the probability that the two-sided t test of `n` numbers with this `deviation` finds a mean `effect`."""
    limit, shift = student.ppf(1 - level / 2, n - 1), effect / deviation * sqrt(n)
    return float(ncf.sf(limit**2, 1, n - 1, shift**2))  # the square of a noncentral t, of both sides


def detectable(deviation: float, n: int, level: float = LEVEL) -> float:
    """Return the mean that is found with at least probability POWER, rounded up to hundredths of its unit."""
    exact = float(deviation * brentq(lambda effect: power(effect, 1.0, n, level) - POWER, 0.0, 100 / sqrt(n)))
    return ceil(100 * exact) / 100


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of every row of two arrays (rows, n), with mean ranks for ties; NaN if constant."""
    ranks = [rankdata(values, axis=1) for values in (x, y)]
    a, b = (one - one.mean(axis=1, keepdims=True) for one in ranks)
    with np.errstate(invalid="ignore"):
        found: np.ndarray = (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    return found


def draws(n: int, what: str, number: int = DRAWS) -> np.ndarray:
    """Return places of n things drawn with replacement, (draws, n), always the same, and others for another `what`."""
    return np.random.default_rng([SEED, *what.encode()]).integers(n, size=(number, n))


def with_interval(value: float, drawn: np.ndarray, methods: int) -> Correlation | None:
    """Return a correlation with the percentiles of its draws; draws without spread say nothing and are left out."""
    drawn = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not len(drawn):
        return None
    low, high = np.quantile(drawn, (LEVEL / 2, 1 - LEVEL / 2))
    return Correlation(value, float(low), float(high), methods)
