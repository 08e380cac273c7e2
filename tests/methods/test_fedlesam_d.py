from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedLESAM_D = find("FedLESAM_D")


def transcription(p: Problem, rho: float, beta: float, direction: str = "client_old") -> np.ndarray:
    w, before = p.w0, p.w0
    old: dict[int, np.ndarray] = {}
    lam_i = {i: np.zeros_like(w) for i in range(p.N)}
    lam = np.zeros_like(w)
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            e = rho * unit((before if direction == "server_last" else old.get(i, w)) - w)
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v + e) - lam_i[i] + (v - w) / beta, p.lr(t))
            lam_i[i] = lam_i[i] - (v - w) / beta
            old[i] = w
            ends.append(v)
        lam = lam - sum(v - w for v in ends) / (beta * p.N)
        before, w = w, sum(ends) / len(ends) - beta * lam
    return w


@pytest.mark.parametrize("direction", ["client_old", "server_last"])
def test_transcription(direction: str) -> None:
    method = FedLESAM_D(rho=0.3, beta=4.0, direction=direction)
    assert_agrees(lambda p: transcription(p, 0.3, 4.0, direction), method)


def test_the_servers_last_move_contains_its_dual_term() -> None:
    q = two_quadratics()
    method = FedLESAM_D(direction="server_last")
    before, kept = q.run(method, 2)
    after, _ = q.round(method, before, kept, [0, 1], 2)
    torch.testing.assert_close(after.last, after.w - before.w, rtol=0, atol=0)
    assert (after.last - after.h).norm() > 1e-3
