from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedGAMMA = find("FedGAMMA")


def transcription(p: Problem, rho: float) -> np.ndarray:
    w, c = p.w0, np.zeros_like(p.w0)
    ci = {i: np.zeros_like(w) for i in range(p.N)}
    for t, cohort in enumerate(p.cohorts):
        ends, changes = [], []
        for i in cohort:
            v = w
            for _ in range(p.K):
                sharp = p.grad(i, v + rho * unit(p.grad(i, v)))
                v = p.step(v, sharp - ci[i] + c, p.lr(t))
            change = (w - v) / (p.K * p.lr(t)) - c
            ci[i] = ci[i] + change
            changes.append(change)
            ends.append(v)
        w, c = p.mean(cohort, ends), c + sum(changes) / p.N
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.3), FedGAMMA(rho=0.3))


def test_perturbation_does_not_contain_the_variates() -> None:
    q = two_quadratics()
    server, kept = q.run(FedGAMMA(), 3)
    q.asked.clear()
    q.round(FedGAMMA(rho=0.2), server, kept, [0, 1], 3)
    gradient = q.a * (q.asked[0] - q.b)
    expected = 0.2 * gradient / gradient.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(q.asked[1] - q.asked[0], expected, rtol=0, atol=1e-12)
