"""The privacy settings of a run, and the epsilon that its rounds cost, computed by `dp-accounting`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from functools import cache, reduce
from math import exp, floor, inf, log, log1p, log2, log10, pi, sqrt
from typing import Any, Literal

from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper

Neighbours = Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE"]
INTERVAL, COARSE = 1e-4, 1e-3  # intervals of privacy losses: the default of `dp-accounting`, and one for a search
WIDEST = 500.0  # largest interval: its exponential is finite
MOST_ROUNDS = 100_000
RESOLUTION = 1e-13  # of delta for each round: errors of Fourier transforms, which composition multiplies
NEARLY_ALL = 1 - 1e-9  # above this rate, sampling is ignored: the epsilon that it saves is below rounding errors
DIGITS = 4  # significant digits of a computed noise multiplier


@cache
def epsilon(
    rate: float, noise_multiplier: float, rounds: int, delta: float, neighbours: Neighbours = "ADD_OR_REMOVE_ONE",
    interval: float = INTERVAL, again: tuple[int, ...] = (),
) -> float:  # fmt: skip
    """Bound the epsilon of `rounds` rounds at `delta` from above, by privacy loss distributions; exact at rate 1.

    In each round every client takes part with probability `rate`, independently, and changes a sum by at most 1.
    Gaussian noise with standard deviation `noise_multiplier` is added to the sum. neighbours: whether neighbouring data
    sets differ by one client added or removed, or by the data of one client. interval: privacy losses are rounded up to
    multiples of about this number, or of a larger one for large losses. again: the number of released sums of each
    round that released several. The sums of a round have the same cohort, so k of them count as one sum with noise that
    is smaller by the factor sqrt(k). Raises InputError at a rate below 1 without the extra `dp`, and if `rounds` is too
    large, or `delta` too small, for floating-point numbers.
    """
    if not rounds:
        return 0.0
    releases = Counter({1: rounds - len(again)}) + Counter(again)  # releases of a round -> rounds
    moved = 1 if neighbours == "ADD_OR_REMOVE_ONE" else 2  # the sum of several Gaussians is a Gaussian
    distance = moved * sqrt(sum(k * number for k, number in releases.items())) / noise_multiplier
    found = gaussian_epsilon(distance, delta)  # sampling makes it no larger
    if rate > NEARLY_ALL:
        return found
    _check_resolved(rounds, delta)
    width, step = inf, _interval(interval, noise_multiplier, rate * distance, rounds, found)
    while step < width / 4:
        width = step
        found = min(found, _composed(rate, noise_multiplier, releases, delta, neighbours, width))
        step = _interval(interval, noise_multiplier, rate * distance, rounds, found)
    return found


@cache
def noise_for(epsilon_wanted: float, delta: float, rate: float, rounds: int) -> float:
    """Find the least noise multiplier, to four significant digits, whose `epsilon` is at most `epsilon_wanted`.

    The result is at least LEAST_NOISE. Raises InputError if it would exceed MOST_NOISE, or for the same reasons as
    `epsilon`.
    """

    def excess(noise: float) -> float:
        spent = epsilon(rate, noise, rounds, delta, interval=COARSE)
        return log(max(spent, epsilon_wanted / 1e3) / epsilon_wanted)

    if excess(LEAST_NOISE) <= 0:
        return LEAST_NOISE
    if excess(MOST_NOISE) > 0:
        raise InputError(f"privacy.epsilon = {epsilon_wanted:g} in {rounds} rounds needs a noise_multiplier above "
                         f"{MOST_NOISE:g}; set a larger epsilon, fewer rounds, or a smaller rate")  # fmt: skip
    low = high = min(max(_guess(epsilon_wanted, delta, rate, rounds), LEAST_NOISE), MOST_NOISE)
    while excess(high) > 0:
        low, high = high, 1.25 * high
    while excess(low) <= 0:
        low, high = max(low / 1.25, LEAST_NOISE), low
    from scipy.optimize import brentq  # takes long to import

    return _least_digits(
        float(brentq(excess, low, high, xtol=1e-5 * high)),
        lambda noise: epsilon(rate, noise, rounds, delta) <= epsilon_wanted,
    )


def _check_resolved(rounds: int, delta: float) -> None:
    """Raise InputError if the rounding errors of the composition of rounds are not small compared with `delta`."""
    if rounds > MOST_ROUNDS:
        raise InputError(f"privacy: the cost of {rounds} rounds cannot be computed; set at most {MOST_ROUNDS}")
    if delta < (least := max(rounds, 10) * RESOLUTION):
        raise InputError(f"privacy.delta = {delta:g} is below what floating point resolves of {rounds} rounds; "
                         f"set at least {least:g}")  # fmt: skip


def _interval(interval: float, noise_multiplier: float, spread: float, rounds: int, rough: float) -> float:
    """Return the discretisation interval of a round's privacy losses; `rough` estimates the epsilon of all rounds.

    It is `interval`, made smaller for small losses, and larger if a distribution would have more than about 1e5 bins;
    rounded to `interval` times a power of two, so that the distribution of a round serves other numbers of rounds, too.
    spread: the approximate standard deviation of the loss summed over all rounds.
    """
    small = min(1.0, 10 * rough, 300 * spread / sqrt(rounds))
    of_a_round = 0.5 / noise_multiplier**2 + 10 / noise_multiplier
    factor = max(small, rough / 10, of_a_round / 10, spread / 10)
    return min(interval * 2.0 ** round(log2(factor)), WIDEST)


def _composed(
    rate: float, noise_multiplier: float, releases: Counter[int], delta: float, neighbours: Neighbours, interval: float
) -> float:
    parts = []
    try:
        for k, number in releases.items():
            losses = _losses(rate, noise_multiplier / sqrt(k), neighbours, interval)
            parts.append(losses.self_compose(number) if number > 1 else losses)
        return float(reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))
    except (ArithmeticError, MemoryError) as error:
        raise InputError(f"privacy: the cost of rate = {rate:g} with noise_multiplier = {noise_multiplier:g} cannot be "
                         f"computed: {error}") from error  # fmt: skip


def _least_digits(near: float, suffices: Callable[[float], bool]) -> float:
    """Search from `near` for the least number of four significant digits for which `suffices`, monotone, is true."""
    unit = 10.0 ** (floor(log10(near)) + 1 - DIGITS)
    high, stride = floor(near / unit) + 1, 1
    while not suffices(_multiple(high, unit)):
        high, stride = high + stride, 2 * stride
    low, stride = high - 1, 1
    while suffices(_multiple(low, unit)):
        high, low, stride = low, low - stride, 2 * stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(_multiple(middle, unit)) else (middle, high)
    return _multiple(high, unit)


def _multiple(steps: int, unit: float) -> float:
    """Return `steps` times `unit`, rounded to `DIGITS` digits."""
    return float(f"{steps * unit:.{DIGITS}g}")


def _guess(epsilon_wanted: float, delta: float, rate: float, rounds: int) -> float:
    """Estimate the noise multiplier by the central limit theorem of Gaussian differential privacy (Bu et al., 2020)."""
    mu = gaussian_distance(epsilon_wanted, delta)
    return 1 / sqrt(log1p((mu / rate) ** 2 / rounds)) if rate < 1 else sqrt(rounds) / mu


@cache
def _losses(rate: float, noise_multiplier: float, neighbours: Neighbours, interval: float) -> Any:
    """Return the privacy loss distribution of one round; the discretisation never underestimates the losses."""
    try:
        from dp_accounting import NeighboringRelation  # an extra
        from dp_accounting.pld import privacy_loss_distribution as distributions
    except ImportError as error:
        raise InputError("privacy needs the package dp-accounting: pip install 'fedflat[dp]'") from error
    relation = getattr(NeighboringRelation, neighbours)
    return distributions.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=interval
    )


ROUNDED_UP = 1e-9  # relative margin of an epsilon above the computed root; more than the root's error


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Compute epsilon at `delta`, rounded up, of a noised sum.

    distance: the change of the sum by one client, in standard deviations of the noise.
    """
    from scipy.optimize import brentq  # takes long to import
    from scipy.special import ndtri

    if gaussian_delta(distance, 0.0) <= delta:
        return 0.0
    high = distance**2 / 2 - distance * float(ndtri(delta))  # where the first of the two terms of delta is delta
    root = float(brentq(lambda epsilon: gaussian_delta(distance, epsilon) - delta, 0.0, high, xtol=1e-12))
    return root + ROUNDED_UP * (1 + root)


def gaussian_distance(epsilon: float, delta: float) -> float:
    """Compute the distance with `epsilon` at `delta`, from 1e-12 to 1e12, in standard deviations of the noise."""
    from scipy.optimize import brentq

    def excess(power: float) -> float:
        return gaussian_delta(10**power, epsilon) - delta

    return 1e-12 if excess(-12) > 0 else 10 ** float(brentq(excess, -12, 12))


def gaussian_delta(distance: float, epsilon: float) -> float:
    """Compute delta = Phi(distance/2 - epsilon/distance) - e^epsilon Phi(-distance/2 - epsilon/distance), exactly.

    Both terms contain the density at the first argument as a factor. Without this factor neither term is large, so that
    their difference is exact.
    """
    from scipy.special import ndtr

    near, far = distance / 2 - epsilon / distance, distance / 2 + epsilon / distance
    density = exp(-near * near / 2) / sqrt(2 * pi)
    return (float(ndtr(near)) if near > 0 else density * _mills(-near)) - density * _mills(far)


def _mills(x: float) -> float:
    """Compute the probability of a normal deviate above `x`, divided by the density at `x`; `x` is at least 0."""
    from scipy.special import erfcx

    return sqrt(pi / 2) * float(erfcx(x / sqrt(2)))


Noise = Literal["system", "seeded-not-private"]
LEAST_NOISE = 0.01  # below it epsilon is in the thousands, and the grid of `PrivateMean` would be finer than its sums
MOST_NOISE = 1e9  # times the largest clip, divided by the least rate, it is still finite in single precision


@by_name
@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Client-level (epsilon, delta)-differential privacy of all models that a run exports; see docs/privacy.md."""

    epsilon: float = hyper(
        MISSING, "most that the run may spend, for one client added or removed", low=0, open_low=True, high=1e6
    )
    delta: float = hyper(
        MISSING, "chance that epsilon does not hold; well below one over the clients", low=0, open_low=True, high=0.5
    )
    clip: float = hyper(
        MISSING, "bound on the norm of all that a client sends, in the unit of parameters", low=1e-15, high=1e15
    )
    rate: float = hyper(MISSING, "chance of every client, independently, to take part in a round",
                        low=1e-9, high=1)  # fmt: skip
    noise_multiplier: float | None = hyper(
        None,
        "deviation of the noise on the sum, in clips; default: the one that spends epsilon in all rounds",
        low=LEAST_NOISE,
        high=MOST_NOISE,
    )
    noise: Noise = hyper("system", "where random numbers come from: the operating system, or for tests the seed")

    clip_without_public: bool = hyper(
        False,
        "clip and noise what a client sends without the part that the server computes by itself (FedCM's momentum)",
        later=True,
    )

    def __post_init__(self) -> None:
        """Check the fields. Raises InputError, naming the field, for a value out of range."""
        check(self, "privacy")
