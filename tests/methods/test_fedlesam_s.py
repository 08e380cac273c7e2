from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedLESAM_S = find("FedLESAM_S")


def transcription(p: Problem, rho: float, scale: float = 1.0, direction: str = "client_old") -> np.ndarray:
    w, before, c = p.w0, p.w0, np.zeros_like(p.w0)
    old: dict[int, np.ndarray] = {}
    ci = {i: np.zeros_like(w) for i in range(p.N)}
    for t, cohort in enumerate(p.cohorts):
        moves, changes = [], []
        for i in cohort:
            e = rho * unit((before if direction == "server_last" else old.get(i, w)) - w)
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v + e) + scale * (c - ci[i]), p.lr(t))
            change = (w - v) / (p.K * p.lr(t)) - c
            ci[i] = ci[i] + change
            old[i] = w
            moves.append(v - w)
            changes.append(change)
        before, w = w, w + p.mean(cohort, moves)
        c = c + sum(changes) / p.N
    return w


@pytest.mark.parametrize("direction", ["client_old", "server_last"])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_transcription(scale: float, direction: str) -> None:
    method = FedLESAM_S(rho=0.3, variate_scale=scale, direction=direction)
    assert_agrees(lambda p: transcription(p, 0.3, scale, direction), method)


def test_reaches_the_optimum_as_scaffold_does_when_the_server_stands_still() -> None:
    """At the optimum nothing moves, so the perturbation dies out; on the way it only delays."""
    q = two_quadratics()
    server, _ = q.run(FedLESAM_S(rho=1e-9), 400)
    torch.testing.assert_close(server.w, q.optimum, rtol=0, atol=1e-6)
