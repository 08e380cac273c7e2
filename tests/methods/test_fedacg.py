from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees
from support.quadratics import two_quadratics

FedACG = find("FedACG")


def transcription(p: Problem, lam: float, beta: float) -> np.ndarray:
    w, m = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        ahead = w + lam * m
        ends = []
        for i in cohort:
            v = ahead
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v) + beta * (v - ahead), p.lr(t))
            ends.append(v)
        m = lam * m + p.mean(cohort, [v - ahead for v in ends])
        w = p.mean(cohort, ends)
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.7, 0.3), FedACG(lam=0.7, beta=0.3), ("uniform", "samples"))


def test_the_model_is_the_old_one_plus_the_momentum_and_clients_start_ahead() -> None:
    q = two_quadratics()
    method = FedACG()
    before, kept = q.run(method, 3)
    q.asked.clear()
    after, _ = q.round(method, before, kept, [0, 1], 3)
    torch.testing.assert_close(after.w, before.w + after.m, rtol=0, atol=1e-14)
    torch.testing.assert_close(q.asked[0][0], before.w + 0.85 * before.m, rtol=0, atol=1e-14)
