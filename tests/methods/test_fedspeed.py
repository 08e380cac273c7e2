from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedSpeed = find("FedSpeed")


def transcription(p: Problem, rho: float, alpha: float, mix: float, active: bool = False) -> np.ndarray:
    w = p.w0
    h = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                g = p.grad(i, v)
                q = (1 - mix) * g + mix * p.grad(i, v + rho * unit(g))
                v = p.step(v, q + alpha * h[i] + alpha * (v - w), p.lr(t))
            h[i] = h[i] + v - w
            ends.append(v)
        if active:
            w = sum(v + h[i] for v, i in zip(ends, cohort, strict=True)) / len(cohort)
        else:
            w = sum(ends) / len(ends) + sum(h) / p.N
    return w


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("mix", [1.0, 0.6, 0.0])
def test_transcription(mix: float, active: bool) -> None:
    method = FedSpeed(rho=0.3, alpha=0.2, mix=mix, active_prox_correct=active)
    assert_agrees(lambda p: transcription(p, 0.3, 0.2, mix, active), method)


@pytest.mark.slow
def test_reaches_the_optimum_up_to_the_perturbation() -> None:
    q = two_quadratics(steps=40)
    server, _ = q.run(FedSpeed(rho=1e-6, alpha=1.0), 300)
    torch.testing.assert_close(server.w, q.optimum, rtol=0, atol=1e-4)
