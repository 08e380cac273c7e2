"""What the Gaussian mechanism costs without sampling, in closed form (Balle and Wang, ICML 2018)."""

from __future__ import annotations

from math import exp, pi, sqrt

ROUNDED_UP = 1e-9  # by which an epsilon is larger than the root that was found, more than the root's error


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Compute the epsilon at `delta` of a sum that is moved by `distance` deviations of its noise, rounded up."""
    from scipy.optimize import brentq  # takes long to import
    from scipy.special import ndtri

    if gaussian_delta(distance, 0.0) <= delta:
        return 0.0
    high = distance**2 / 2 - distance * float(ndtri(delta))  # where the first of the two terms of delta is delta
    root = float(brentq(lambda epsilon: gaussian_delta(distance, epsilon) - delta, 0.0, high, xtol=1e-12))
    return root + ROUNDED_UP * (1 + root)


def gaussian_distance(epsilon: float, delta: float) -> float:
    """Compute the distance, in deviations of the noise and from 1e-12 to 1e12, that costs `epsilon` at `delta`."""
    from scipy.optimize import brentq

    def excess(power: float) -> float:
        return gaussian_delta(10**power, epsilon) - delta

    return 1e-12 if excess(-12) > 0 else 10 ** float(brentq(excess, -12, 12))


def gaussian_delta(distance: float, epsilon: float) -> float:
    """Compute delta = Phi(distance/2 - epsilon/distance) - e^epsilon Phi(-distance/2 - epsilon/distance), exactly.

    The two terms share the density at the first argument; without it none is large, and their difference is exact.
    """
    from scipy.special import ndtr

    near, far = distance / 2 - epsilon / distance, distance / 2 + epsilon / distance
    density = exp(-near * near / 2) / sqrt(2 * pi)
    return (float(ndtr(near)) if near > 0 else density * _mills(-near)) - density * _mills(far)


def _mills(x: float) -> float:
    """Compute the chance of a normal deviate above `x` over the density at `x`, for `x` of at least 0."""
    from scipy.special import erfcx

    return sqrt(pi / 2) * float(erfcx(x / sqrt(2)))
