from __future__ import annotations

import numpy as np
import pytest

from fedflat.methods import find
from support.problem import Linear, Problem, assert_agrees, softmax_error

FedRobust = find("FedRobust")


def transcription(p: Problem, eta2: float, lam: float) -> np.ndarray:
    """On A x + b with one number per channel: A is features x features."""
    w, d = p.w0, p.features
    A, b = [np.eye(d) for _ in range(p.N)], [np.zeros(d) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v, (x, y) = w, p.data[i]
            for _ in range(p.K):
                moved = x @ A[i].T + b[i]
                by_w, by_input = p.model.pull(v, moved, softmax_error(p.scores(v, moved), y))
                A[i] = A[i] + eta2 * (by_input.T @ x - 2 * lam * (A[i] - np.eye(d)))
                b[i] = b[i] + eta2 * (by_input.sum(axis=0) - 2 * lam * b[i])
                v = p.step(v, by_w, p.lr(t))
            ends.append(v)
        w = p.mean(cohort, ends)
    return w


def test_transcription() -> None:
    method = FedRobust(eta2=0.3, lam=0.5, channels=Problem.features, pixels=1)
    assert_agrees(lambda p: transcription(p, 0.3, 0.5), method, ("uniform", "samples"))


def test_the_shape_comes_from_the_data() -> None:
    assert vars(FedRobust().fitted((3, 8, 8)))["channels"] == 3
    assert FedRobust().fitted((3, 8, 8)).shift_size == 3 * 64
    assert FedRobust().fitted((10,)).matrix_size == 1
    assert FedRobust(channels=5, pixels=2).fitted((10,)).matrix_size == 25


def test_the_ascent_raises_the_loss_and_the_penalty_holds_it() -> None:
    """With a strong penalty A stays near I and the run near FedAvg's; without, it leaves it."""
    problem = Problem(Linear())
    plain = problem.simulate(find("FedAvg")())
    near, far = (problem.simulate(FedRobust(eta2=eta2, lam=lam)) for eta2, lam in ((1e-3, 100.0), (0.5, 0.0)))
    assert np.abs(near - plain).max() < 1e-3 < np.abs(far - plain).max()


def test_a_shape_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="inputs of 2 channels and 6 numbers do not fit samples of 4"):
        Problem().simulate(FedRobust(channels=2, pixels=3))
