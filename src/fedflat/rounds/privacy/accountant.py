"""What rounds of the sampled Gaussian mechanism cost, by Google's `dp-accounting`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, reduce
from math import exp, floor, log, log1p, log10, sqrt
from typing import Any, Literal

from ...core.errors import InputError

Neighbours = Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE"]
INTERVAL, COARSE = 1e-4, 1e-3  # of losses: what `dp-accounting` takes by itself, and one for searching
DIGITS = 4  # significant ones of a noise multiplier that is solved for


@cache
def epsilon(
    rate: float, noise_multiplier: float, rounds: int, delta: float, neighbours: Neighbours = "ADD_OR_REMOVE_ONE",
    interval: float = INTERVAL, again: tuple[int, ...] = (),
) -> float:  # fmt: skip
    """The epsilon of so many rounds at `delta`, an upper bound by privacy loss distributions.

    In each round every client takes part with probability `rate`, independently, and moves a sum by at most 1, to which
    Gaussian noise of deviation `noise_multiplier` is added. neighbours: what two data sets differ in, one client that
    one of them does not have, or one client whose data are others. interval: to whose multiples losses are rounded up.
    again: how many sums were released, of each round of which it was more than one. They have one cohort, so k of them
    are one with noise that is smaller by sqrt(k). Raises InputError without the extra `dp`.
    """
    if not rounds:
        return 0.0
    releases = Counter({1: rounds - len(again)}) + Counter(again)  # releases of a round -> rounds
    if rate == 1:  # the sum of several Gaussians is one, which has no error of composition
        releases = Counter({sum(k * number for k, number in releases.items()): 1})
    parts = []
    for k, number in releases.items():
        losses = _losses(rate, noise_multiplier / sqrt(k), neighbours, interval)
        parts.append(losses.self_compose(number) if number > 1 else losses)
    return float(reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))


@cache
def noise_for(epsilon_wanted: float, delta: float, rate: float, rounds: int) -> float:
    """The least noise multiplier, of four significant digits, whose `epsilon` in so many rounds is at most the wanted.

    Raises InputError without the extra `dp`.
    """

    def excess(noise: float) -> float:
        return log(epsilon(rate, noise, rounds, delta, interval=COARSE) / epsilon_wanted)

    low = high = _guess(epsilon_wanted, delta, rate, rounds)
    while excess(high) > 0:
        low, high = high, 1.25 * high
    while excess(low) <= 0:
        low, high = low / 1.25, low
    from scipy.optimize import brentq  # takes long to import

    return _least_digits(
        float(brentq(excess, low, high, xtol=1e-5 * high)),
        lambda noise: epsilon(rate, noise, rounds, delta) <= epsilon_wanted,
    )


def _least_digits(near: float, suffices: Callable[[float], bool]) -> float:
    """The least number of four significant digits that suffices, which is `near`."""
    unit = 10.0 ** (floor(log10(near)) + 1 - DIGITS)
    steps = floor(near / unit)
    while suffices(_multiple(steps, unit)):
        steps -= 1
    while not suffices(_multiple(steps, unit)):
        steps += 1
    return _multiple(steps, unit)


def _multiple(steps: int, unit: float) -> float:
    """`steps` times `unit`, as it is written with so many digits."""
    return float(f"{steps * unit:.{DIGITS}g}")


def _guess(epsilon_wanted: float, delta: float, rate: float, rounds: int) -> float:
    """Roughly the noise multiplier, by the central limit theorem of Gaussian differential privacy (Bu et al., 2020)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def excess(log_mu: float) -> float:
        """The log of the delta of mu-GDP at the wanted epsilon, minus that of the wanted one."""
        mu = 10**log_mu
        upper, lower = norm.logcdf(mu / 2 - epsilon_wanted / mu), norm.logcdf(-mu / 2 - epsilon_wanted / mu)
        return float(upper + log1p(-min(exp(epsilon_wanted + lower - upper), 1 - 1e-12)) - log(delta))

    mu = 10 ** float(brentq(excess, -6, 4))
    return max(1 / sqrt(log1p((mu / rate) ** 2 / rounds)) if rate < 1 else sqrt(rounds) / mu, 0.05)


@cache
def _losses(rate: float, noise_multiplier: float, neighbours: Neighbours, interval: float) -> Any:
    """The privacy loss distribution of one round; estimates are pessimistic."""
    try:
        from dp_accounting import NeighboringRelation  # an extra
        from dp_accounting.pld import privacy_loss_distribution as distributions
    except ImportError as error:
        raise InputError("privacy needs the package dp-accounting: pip install 'fedflat[dp]'") from error
    relation = getattr(NeighboringRelation, neighbours)
    return distributions.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=interval
    )
