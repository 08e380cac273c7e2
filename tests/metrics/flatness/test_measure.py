"""Numbers are shown as far as their errors allow."""

from __future__ import annotations

import re
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.metrics.flatness import Measured
from fedflat.metrics.flatness.measure import with_error


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1.23, 0.0031, "1.2300 ± 0.0031"), (1.0, 0.25, "1.00 ± 0.25"), (2.0, 1.4142, "2.0 ± 1.4"),
        (0.5, 0.0996, "0.50 ± 0.10"), (12345.6, 678.9, "12350 ± 680"), (-3.14159, 0.02, "-3.142 ± 0.020"),
        (1.23456e-7, 3.1e-9, "(1.235 ± 0.031)e-07"), (4.5e8, 2e7, "(4.50 ± 0.20)e+08"), (0.1, 25.0, "0 ± 25"),
        (3.5, 0.0, "3.5 ± 0"), (3.14159, 1e-9, "3.14 ± 1e-09"), (nan, 0.1, "nan ± 0.1"), (1.0, inf, "1 ± inf"),
    ],
)  # fmt: skip
def test_the_error_decides_the_digits(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


@given(st.floats(-1e9, 1e9), st.floats(1e-12, 1e9))
def test_what_is_shown_is_within_a_twentieth_of_the_error(value: float, error: float) -> None:
    """Rounding at the second digit of the error moves number and error by at most a twentieth of it."""
    if error <= 1e-6 * abs(value):
        return
    shown = with_error(value, error)
    numbers = re.fullmatch(r"\(?(\S+) ± (\S+?)\)?(?:e([+-]\d+))?", shown)
    scale = 10.0 ** int(numbers[3] or 0)
    assert abs(float(numbers[1]) * scale - value) <= 0.051 * error + 1e-15
    assert abs(float(numbers[2]) * scale - error) <= 0.051 * error


def test_a_number_without_an_error_has_three_digits() -> None:
    assert str(Measured(1.23456)) == "1.23"
    assert str(Measured(1.23456, 0.021, "interval")) == "1.235 ± 0.021"
