from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedSAM = find("FedSAM")


def transcription(p: Problem, rho: float) -> np.ndarray:
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                perturbation = rho * unit(p.grad(i, v))
                v = p.step(v, p.grad(i, v + perturbation), p.lr(t))
            moves.append(v - w)
        w = w + p.mean(cohort, moves)
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.3), FedSAM(rho=0.3), ("uniform", "samples"))


def test_perturbation_has_length_rho_and_points_uphill() -> None:
    q = two_quadratics()
    q.run(FedSAM(rho=0.2), 2)
    for here, there in zip(q.asked[::2], q.asked[1::2], strict=True):
        step = there - here
        torch.testing.assert_close(step.norm(dim=-1), torch.full((2,), 0.2, dtype=torch.float64), rtol=0, atol=1e-12)
        gradient = q.a * (here - q.b)
        assert torch.all((step * gradient).sum(-1) > 0.2 * gradient.norm(dim=-1) * (1 - 1e-9))


def test_zero_gradient_gives_no_perturbation() -> None:
    q = two_quadratics()
    down = FedSAM().broadcast(FedSAM().init_server(q.b[0]))
    result = q.local(FedSAM(rho=0.5), down.map(lambda x: x.expand(1, -1)), FedSAM().init_client(down), [0])
    assert torch.equal(result.w[0], q.b[0])
    assert all(torch.equal(at[0], q.b[0]) for at in q.asked)
