"""Paired statistics over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    """The mean of paired differences with a 95 % confidence interval (Student's t); None with fewer than two pairs."""

    mean: float
    low: float | None
    high: float | None
    n: int


def mean_estimate(values: Sequence[float]) -> MeanEstimate:
    """Mean and sample standard deviation of `values`, of which there must be at least one."""
    a = np.asarray(values, dtype=float)
    with np.errstate(all="ignore"):  # a loss may be infinite, and so is its mean then
        return MeanEstimate(float(a.mean()), float(a.std(ddof=1)) if len(a) > 1 else None, len(a))


def paired_difference(values: dict[int, float], baseline: dict[int, float]) -> Difference | None:
    """`values - baseline` over the seeds that both have; None if there is no such seed."""
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        return None
    ours, theirs = (np.array([side[seed] for seed in seeds]) for side in (values, baseline))
    difference = ours - theirs
    mean = float(difference.mean())
    if len(seeds) < 2:
        return Difference(mean, None, None, len(seeds))
    if np.ptp(difference) == 0:
        return Difference(mean, mean, mean, len(seeds))
    from scipy.stats import ttest_rel  # takes half a second to import

    interval = ttest_rel(ours, theirs).confidence_interval(CONFIDENCE)
    return Difference(mean, float(interval.low), float(interval.high), len(seeds))
