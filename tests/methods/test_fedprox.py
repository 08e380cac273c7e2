from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees
from support.quadratics import two_quadratics

FedProx = find("FedProx")


def transcription(p: Problem, mu: float) -> np.ndarray:
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v) + mu * (v - w), p.lr(t))
            ends.append(v)
        w = p.mean(cohort, ends)
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.8), FedProx(mu=0.8), ("uniform", "samples"))


def test_many_local_steps_reach_the_proximal_point() -> None:
    """Client i ends at argmin F_i + mu/2 ||w - w^t||^2 = (a b + mu w^t) / (a + mu)."""
    q = two_quadratics(steps=400)
    down = FedProx().broadcast(FedProx().init_server(torch.ones(2).double())).map(lambda x: x.expand(2, -1))
    result = q.local(FedProx(mu=2.0), down, FedProx().init_client(down), [0, 1])
    torch.testing.assert_close(result.w, (q.a * q.b + 2 * down.w) / (q.a + 2), rtol=0, atol=1e-10)
