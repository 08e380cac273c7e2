from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

MoFedSAM = find("MoFedSAM")


def transcription(p: Problem, rho: float, beta: float, absolute: float | None = None) -> np.ndarray:
    w, delta = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                sharp = p.grad(i, v + rho * unit(p.grad(i, v)))
                v = p.step(v, beta * sharp + (1 - beta) * delta, p.lr(t))
            ends.append(v)
        mean_end = p.mean(cohort, ends)
        delta = (w - mean_end) / (p.K * p.lr(t))
        w = mean_end if absolute is None else w - absolute * delta
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.3, 0.4), MoFedSAM(rho=0.3, beta=0.4), ("uniform", "samples"))
    literal = MoFedSAM(rho=0.3, beta=0.4, server_lr=0.2, server_lr_mode="absolute")
    assert_agrees(lambda p: transcription(p, 0.3, 0.4, absolute=0.2), literal)


def test_direction_is_a_running_mean_of_the_sam_gradients() -> None:
    q = two_quadratics()
    method = MoFedSAM(rho=0.3, beta=0.4)
    before, kept = q.run(method, 3)
    q.asked.clear()
    after, _ = q.round(method, before, kept, [0, 1], 3)
    sharp = torch.stack([q.a * (w - q.b) for w in q.asked[1::2]]).mean((0, 1))
    torch.testing.assert_close(after.direction, 0.4 * sharp + 0.6 * before.direction, rtol=0, atol=1e-13)


def test_perturbation_follows_the_plain_gradient_not_the_mix() -> None:
    q = two_quadratics()
    server, kept = q.run(MoFedSAM(), 3)
    q.asked.clear()
    q.round(MoFedSAM(rho=0.3), server, kept, [0, 1], 3)
    for here, there in zip(q.asked[::2], q.asked[1::2], strict=True):
        gradient = q.a * (here - q.b)
        expected = 0.3 * gradient / gradient.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(there - here, expected, rtol=0, atol=1e-12)
