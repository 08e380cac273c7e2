from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees
from support.quadratics import two_quadratics

FedDyn = find("FedDyn")


def transcription(p: Problem, alpha: float) -> np.ndarray:
    """The paper's own form: duals of gradient scale, and a server state that sums moves."""
    w, h = p.w0, np.zeros_like(p.w0)
    dual = [np.zeros_like(w) for _ in range(p.N)]  # the paper's grad L_k(theta_k), minus lambda_i
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v) - dual[i] + alpha * (v - w), p.lr(t))
            dual[i] = dual[i] - alpha * (v - w)
            ends.append(v)
        h = h - alpha * sum(v - w for v in ends) / p.N
        w = sum(ends) / len(ends) - h / alpha
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.1), FedDyn(alpha=0.1))
    assert_agrees(lambda p: transcription(p, 1.5), FedDyn(alpha=1.5))


def test_server_term_is_the_mean_of_all_clients_terms() -> None:
    """h = (1/N) sum over all clients, those never sampled included with zero."""
    q = two_quadratics()
    server, kept = q.run(FedDyn(), 3, cohorts=[[0], [0], [0]])
    torch.testing.assert_close(server.h, kept[0].h / 2, rtol=0, atol=1e-14)
    server, kept = q.run(FedDyn(), 4, cohorts=[[0], [1], [0, 1], [1]])
    torch.testing.assert_close(server.h, (kept[0].h + kept[1].h) / 2, rtol=0, atol=1e-14)


def test_reaches_the_optimum_that_fedavg_misses() -> None:
    q = two_quadratics(steps=40)
    server, kept = q.run(FedDyn(alpha=1.0), 300)
    torch.testing.assert_close(server.w, q.optimum, rtol=0, atol=1e-9)
    torch.testing.assert_close(server.h, torch.zeros_like(server.h), rtol=0, atol=1e-9)
    gradients = q.a * (q.optimum - q.b)  # at the optimum each dual has learnt the client's own gradient
    torch.testing.assert_close(-torch.stack([kept[0].h, kept[1].h]), gradients, rtol=0, atol=1e-8)


def test_small_alpha_still_adds_the_mean_of_h() -> None:
    """Full participation, alpha -> 0: w <- mean w_i + mean_j h_j, so round 0 moves twice as far as FedAvg."""
    q = two_quadratics()
    dyn, _ = q.run(FedDyn(alpha=1e-14), 1)
    avg, _ = q.run(find("FedAvg")(), 1)
    torch.testing.assert_close(dyn.w, 2 * avg.w, rtol=0, atol=1e-12)
