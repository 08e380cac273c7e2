from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq

from fedflat.metrics.flatness.measures.sharpness import Sharpness
from support.quadratic_clients import Bowls, bowls, measured, orthogonal, unit


def sharpness(b: Bowls, **settings) -> float:
    (found,) = measured(b.subject, Sharpness(**settings)).values()
    assert found.error is None
    return found.value


def first_order_rise(b: Bowls, rho: float) -> float:
    """rho ||g|| + rho^2 u' H u / 2, u = unit(g)."""
    g = b.pooled_gradient(b.w)
    return rho * np.linalg.norm(g) + rho**2 * unit(g) @ b.H @ unit(g) / 2


def worst_rise(b: Bowls, rho: float) -> float:
    """The maximum of a convex quadratic over a ball: (mu I - H) delta = g with mu > lambda_max and ||delta|| = rho."""
    g, (values, vectors) = b.pooled_gradient(b.w), np.linalg.eigh(b.H)
    at = lambda mu: vectors @ (vectors.T @ g / (mu - values))  # noqa: E731
    top = values[-1]
    mu = brentq(lambda mu: np.linalg.norm(at(mu)) - rho, top + 1e-9, top + np.linalg.norm(g) / rho + 1, xtol=1e-13)
    return g @ at(mu) + at(mu) @ b.H @ at(mu) / 2


@pytest.mark.parametrize("rho", [0.05, 0.7])
def test_one_step_is_the_first_order_rise(rho: float) -> None:
    b = bowls()
    assert sharpness(b, rho=rho) == pytest.approx(first_order_rise(b, rho), rel=1e-10)


@pytest.mark.parametrize("rho", [0.05, 0.7, 5.0])
def test_many_steps_find_the_worst_point_of_the_ball(rho: float) -> None:
    b = bowls()
    expected = worst_rise(b, rho)
    assert expected > first_order_rise(b, rho) * (1 + 1e-6)
    assert sharpness(b, rho=rho, steps=60) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_more_steps_stay_in_the_ball_and_above_the_first_order_rise(steps: int) -> None:
    b, rho = bowls(seed=4), 0.9
    assert first_order_rise(b, rho) <= sharpness(b, rho=rho, steps=steps) * (1 + 1e-12)
    assert sharpness(b, rho=rho, steps=steps) <= worst_rise(b, rho) * (1 + 1e-12)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_ball_of_radius_zero_is_flat(steps: int) -> None:
    assert sharpness(bowls(), rho=0.0, steps=steps) == 0


def test_rotation_changes_nothing() -> None:
    b = bowls()
    assert sharpness(b.rotated(orthogonal(4)), rho=0.3, steps=5) == pytest.approx(
        sharpness(b, rho=0.3, steps=5), rel=1e-9
    )
