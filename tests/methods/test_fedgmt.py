from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.federation import simulation
from support.problem import Problem, assert_agrees, softmax, softmax_error

FedGMT = find("FedGMT")


def taught_gradient(p: Problem, i: int, w: np.ndarray, e: np.ndarray, gamma: float, tau: float) -> np.ndarray:
    """The derivative of tau^2 KL(s(z_e / tau) || s(z / tau)) by z is tau (s(z / tau) - s(z_e / tau)), s the softmax."""
    x, y = p.data[i]
    error = softmax_error(p.scores(w, x), y)
    error = error + gamma * tau * (softmax(p.scores(w, x) / tau) - softmax(p.scores(e, x) / tau)) / len(y)
    return p.model.pull(w, x, error)[0]


def transcription(
    p: Problem, gamma: float, tau: float, alpha: float, beta: float | None, active: bool = False
) -> np.ndarray:
    w, e = p.w0, p.w0
    u = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, taught_gradient(p, i, v, e, gamma, tau) - u[i], p.lr(t))
            if beta is not None:
                u[i] = u[i] - (v - w) / beta
            ends.append(v)
        new = p.mean(cohort, ends)
        if beta is not None:
            new = new - beta * (p.mean(cohort, [u[i] for i in cohort]) if active else sum(u) / p.N)
        w = new
        e = alpha * e + (1 - alpha) * w
    return w


@pytest.mark.parametrize(("beta", "active"), [(5.0, False), (5.0, True), (None, False)])
def test_transcription(beta: float | None, active: bool) -> None:
    method = FedGMT(gamma=0.7, tau=2.0, alpha=0.6, beta=beta, dual_scope="active" if active else "all")
    assert_agrees(lambda p: transcription(p, 0.7, 2.0, 0.6, beta, active), method, ("uniform", "samples"))
    untaught = Problem().simulate(FedGMT(gamma=0.0, beta=beta))
    assert np.abs(untaught - transcription(Problem(), 0.7, 2.0, 0.6, beta, active)).max() > 1e-4


def test_a_teacher_equal_to_the_student_teaches_nothing() -> None:
    """Round 0 starts at e = w: the first step is the plain one."""
    one_step = {"client": {"steps": 1, "epochs": None}, "rounds": 1}
    taught, plain = (simulation(FedGMT(gamma=g, beta=None), **one_step) for g in (5.0, 0.0))
    assert torch.allclose(taught.run().w, plain.run().w, rtol=0, atol=1e-14)
