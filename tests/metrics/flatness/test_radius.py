from __future__ import annotations

import numpy as np
import pytest

from fedflat.metrics.flatness import Curve, measure
from fedflat.metrics.flatness.measures.radius import Radius
from support.quadratic_clients import Bowls, bowls, orthogonal, unit


def curve(b: Bowls, **settings) -> Curve:
    found = measure(b.subject, [Radius(**settings)])
    assert not found
    (curve,) = found.curves.values()
    return curve


def at_minimum(b: Bowls) -> Bowls:
    b.w = np.linalg.solve(b.H, np.einsum("i,ijk,ik->j", b.shares, b.A, b.m))
    return b


def test_along_the_gradient_the_quadratic_is_followed() -> None:
    """F(w + r u) = F(w) + r ||g|| + r^2 u' H u / 2."""
    b = bowls()
    g = b.pooled_gradient(b.w)
    found = curve(b, along="gradient", largest=6.0, points=4)
    expected = [b.pooled_loss(b.w) + r * np.linalg.norm(g) + r**2 * unit(g) @ b.H @ unit(g) / 2 for r in (0, 2, 4, 6)]
    assert found.x == [0, 2, 4, 6]
    assert found.y == pytest.approx(expected, rel=1e-10)
    assert found.error is None


def test_random_directions_of_length_one_see_the_mean_curvature() -> None:
    """At the minimum the mean over the sphere is F(w) + r^2 tr(H) / (2 d); zero spread where nothing moves."""
    b = at_minimum(bowls(d=6))
    found = curve(b, directions=300, points=4)
    for r, y, error in zip(found.x, found.y, found.error, strict=True):
        assert y == pytest.approx(b.pooled_loss(b.w) + r**2 * np.trace(b.H) / 12, abs=2 * error + 1e-12)
    assert found.error[0] <= 1e-15 * found.y[0] + 1e-16, "no direction is taken, so there is no spread but of rounding"
    assert 0 < found.error[-1] < 0.1 * found.y[-1]


def test_directions_have_length_one() -> None:
    """In a round bowl every direction rises alike, by a r^2 / 2."""
    b = bowls(clients=1)
    b.A, b.w = 3 * np.eye(4)[None], b.m[0].copy()
    found = curve(b)
    assert found.x == list(range(16))
    assert found.y == pytest.approx([1 + 1.5 * r**2 for r in range(16)], rel=1e-9)
    assert max(found.error) < 1e-9


def test_directions_are_the_same_for_every_model() -> None:
    v = np.random.default_rng(0).standard_normal((10, 4))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    for b in (bowls(), bowls(seed=3)):
        expected = [np.mean([b.pooled_loss(b.w + r * each) for each in v]) for r in (0, 7.5, 15)]
        assert curve(b, points=3).y == pytest.approx(expected, rel=1e-10)


def test_rotation_changes_nothing_along_the_gradient() -> None:
    b = bowls()
    one, other = (curve(x, along="gradient") for x in (b, b.rotated(orthogonal(4))))
    assert one.y == pytest.approx(other.y, rel=1e-9)
