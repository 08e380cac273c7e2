from __future__ import annotations

import numpy as np
import pytest

from fedflat.metrics.flatness.measures.gradient_norm import GradientNorm
from support.quadratic_clients import bowls, measured, orthogonal


def test_length_of_the_pooled_gradient() -> None:
    """||sum_i (n_i / n) A_i (w - m_i)||, in any rotated coordinates."""
    b = bowls(sizes=(5, 1, 2))
    expected = np.linalg.norm(sum(n / 8 * A @ (b.w - m) for n, A, m in zip((5, 1, 2), b.A, b.m, strict=True)))
    for seen in (b, b.rotated(orthogonal(4))):
        assert measured(seen.subject, GradientNorm())["gradient_norm"].value == pytest.approx(expected, rel=1e-10)


def test_zero_at_the_minimum() -> None:
    b = bowls()
    b.w = np.linalg.solve(b.H, np.einsum("i,ijk,ik->j", b.shares, b.A, b.m))
    assert measured(b.subject, GradientNorm())["gradient_norm"].value < 1e-12
