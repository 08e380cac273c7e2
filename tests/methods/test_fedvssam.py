from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedVSSAM = find("FedVSSAM")


def transcription(
    p: Problem, rho: float, search: float, fresh: float, server: float, absolute: float | None = None
) -> np.ndarray:
    theta, h = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        directions = []
        for i in cohort:
            v = theta
            for _ in range(p.K):
                a = (1 - search) * h + search * p.grad(i, v)
                sharp = p.grad(i, v + rho * unit(a))
                v = p.step(v, (1 - fresh) * h + fresh * sharp, p.lr(t))
            directions.append((theta - v) / (p.K * p.lr(t)))
        h = (1 - server) * h + server * p.mean(cohort, directions)
        theta = theta - (p.lr(t) * p.K if absolute is None else absolute) * h
    return theta


@pytest.mark.parametrize(
    ("search", "fresh", "server"),
    [(0.4, 0.4, 0.6), (0.3, 1.0, 1.0), (1.0, 0.3, 1.0), (1.0, 1.0, 0.3)],
    ids=["full", "LF", "LU", "GU"],
)
def test_transcription(search: float, fresh: float, server: float) -> None:
    method = FedVSSAM(rho=0.3, gamma_search=search, gamma_update=fresh, gamma_g=server)
    assert_agrees(lambda p: transcription(p, 0.3, search, fresh, server), method, ("uniform", "samples"))


def test_transcription_of_the_literal_server_step() -> None:
    method = FedVSSAM(rho=0.3, gamma_l=0.4, gamma_g=0.6, server_lr=0.5, server_lr_mode="absolute")
    assert_agrees(lambda p: transcription(p, 0.3, 0.4, 0.4, 0.6, absolute=0.5), method)


def test_one_gamma_is_both_gammas() -> None:
    both = FedVSSAM(gamma_l=0.3, gamma_g=0.6)
    split = FedVSSAM(gamma_l=1.0, gamma_search=0.3, gamma_update=0.3, gamma_g=0.6)
    assert np.array_equal(Problem().simulate(both), Problem().simulate(split))


def test_direction_forgets_at_the_product_of_both_gammas() -> None:
    """h' = (1 - gamma_l gamma_g) h + gamma_l gamma_g mean(sharp g), without decay and clipping."""
    q = two_quadratics()
    method = FedVSSAM(rho=0.3, gamma_l=0.4, gamma_g=0.6)
    before, kept = q.run(method, 3)
    q.asked.clear()
    after, _ = q.round(method, before, kept, [0, 1], 3)
    sharp = torch.stack([q.a * (w - q.b) for w in q.asked[1::2]]).mean((0, 1))
    torch.testing.assert_close(after.h, (1 - 0.24) * before.h + 0.24 * sharp, rtol=0, atol=1e-13)


def test_first_round_searches_along_the_plain_gradient() -> None:
    q = two_quadratics()
    q.run(FedVSSAM(rho=0.3), 1)
    gradient = q.a * (q.asked[0] - q.b)
    expected = 0.3 * gradient / gradient.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(q.asked[1] - q.asked[0], expected, rtol=0, atol=1e-12)
