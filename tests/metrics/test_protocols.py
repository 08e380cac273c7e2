from __future__ import annotations

from math import cos, pi, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.metrics.protocols import WINDOW, AccuracyCurve, Reached, long_mean

accuracies = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def curve(accuracy: list[float], validation: list[float] | None = None) -> AccuracyCurve:
    """Evaluated every second round; in round r, 10 r gradients and 4 r bytes each way have been spent."""
    rows = [
        {
            "t": t,
            "test_accuracy": accuracy[t // 2] if t % 2 else None,
            "validation_accuracy": None if validation is None or t % 2 == 0 else validation[t // 2],
            "gradients": 10 * (t + 1),
            "bytes_down": 3 * (t + 1),
            "bytes_up": 5 * (t + 1),
        }
        for t in range(2 * len(accuracy))
    ]
    return AccuracyCurve.of(rows, vector_bytes=16)


def test_rounds_without_an_evaluation_are_left_out() -> None:
    found = curve([0.1, 0.3, 0.2])
    assert found.rounds.tolist() == [2, 4, 6]
    assert found.accuracy.tolist() == [0.1, 0.3, 0.2]
    assert found.gradients.tolist() == [20, 40, 60]
    assert found.bytes.tolist() == [16, 32, 48]
    assert found.validation is None


def test_metrics_that_a_run_does_not_have() -> None:
    rows = [{"t": 0, "test_accuracy": 0.5, "gradients": 1.0, "bytes_down": 2.0, "bytes_up": 3.0}, {"t": 1}]
    found = AccuracyCurve.of(rows, 4)
    assert (found.rounds.tolist(), found.validation) == ([1], None)
    assert AccuracyCurve.of([], 4).validation is None
    assert len(AccuracyCurve.of([{"t": 0}], 4).rounds) == 0


@given(accuracies, st.integers(1, 80))
def test_the_last_evaluations(accuracy: list[float], k: int) -> None:
    tail = accuracy[-k:]
    mean = sum(tail) / len(tail)
    spread = sqrt(sum((a - mean) ** 2 for a in tail) / len(tail))
    assert curve(accuracy).last(k) == (pytest.approx(mean), pytest.approx(spread, abs=1e-12))


def test_the_final_and_the_best_on_the_test_set() -> None:
    assert curve([0.2, 0.7, 0.4]).final == 0.4
    assert curve([0.2, 0.7, 0.4]).best_on_test == 0.7


def test_the_best_on_validation_is_the_first_of_equals() -> None:
    assert curve([0.2, 0.6, 0.9, 0.7], [0.3, 0.8, 0.5, 0.8]).best_on_validation() == (4, 0.6)
    assert curve([0.2, 0.6]).best_on_validation() is None


def hanning(accuracy: list[float], window: int) -> list[float]:
    """Weights 1 - cos(2 pi i / (window + 1)), i = 1 .. window, around each evaluation; over those that there are."""
    half, result = (window - 1) // 2, []
    for centre in range(len(accuracy)):
        total = weights = 0.0
        for i in range(window):
            place = centre - half + i
            if 0 <= place < len(accuracy):
                weight = 1 - cos(2 * pi * (i + 1) / (window + 1))
                total, weights = total + weight * accuracy[place], weights + weight
        result.append(total / weights)
    return result


@given(accuracies, st.integers(1, 80))
def test_smoothing_is_that_of_an_independent_sum(accuracy: list[float], window: int) -> None:
    """Windows that are shorter than the curve, and longer."""
    assert curve(accuracy).smoothed(window) == pytest.approx(hanning(accuracy, window), abs=1e-9)


def test_the_usual_window() -> None:
    accuracy = list(np.random.default_rng(0).random(50))
    assert curve(accuracy).smoothed() == pytest.approx(hanning(accuracy, WINDOW))
    assert curve(accuracy).smoothed(1) == pytest.approx(accuracy)


@given(st.floats(0, 1), st.integers(1, 60), st.integers(1, 80))
def test_a_constant_stays_and_so_does_the_length(value: float, n: int, window: int) -> None:
    assert curve([value] * n).smoothed(window) == pytest.approx([value] * n)


def test_a_target_is_reached_when_it_is_first_and_not_when_it_stays() -> None:
    found = curve([0.1, 0.5, 0.3, 0.6])
    assert found.reached(0.5) == Reached(rounds=4, gradients=40, bytes=32, vectors=2)
    assert found.reached(0.50001) == Reached(rounds=8, gradients=80, bytes=64, vectors=4)
    assert found.reached(0.1).rounds == 2
    assert found.reached(0.7) is None
    assert curve([0.1]).reached(0.2) is None


def test_a_smoothed_curve_reaches_a_target_later() -> None:
    accuracy = [0.1] * 30
    accuracy[3] = 0.9
    accuracy[20:] = [0.9] * 10
    found, smooth = curve(accuracy), hanning(accuracy, WINDOW)
    place = next(i for i, value in enumerate(smooth) if value >= 0.5)
    assert found.reached(0.5).rounds == 2 * 4
    assert place > 3
    assert found.reached(0.5, smooth=True) == Reached(2 * place + 2, 20 * (place + 1), 16 * (place + 1), place + 1)
    assert found.reached(0.9, smooth=True) is None or max(smooth) >= 0.9


@pytest.mark.parametrize(
    ("averaged", "evaluations", "is_long"), [(10, 50, False), (10, 49, True), (1, 1, False), (2, 2, True)]
)
def test_a_mean_over_more_than_a_fifth_of_the_evaluations_is_pointed_out(averaged, evaluations, is_long) -> None:
    found = long_mean(averaged, evaluations)
    assert (found is not None) == is_long
    assert not found or f"the last {averaged} of {evaluations} evaluations" in found
