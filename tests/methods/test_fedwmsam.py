from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedWMSAM = find("FedWMSAM")


def transcription(
    p: Problem, rho: float, alpha: float, lam: float, correct: bool = True, agreement: int = -1
) -> np.ndarray:
    """The server holds all variates and sends each client its own Delta.

    agreement: 1 if the weight rises with the cosine of a client's descent with the momentum, -1 if it falls.
    """
    w, m, c = p.w0, np.zeros_like(p.w0), np.zeros_like(p.w0)
    ci = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        moves, directions, cosines, changes = [], [], [], []
        for i in cohort:
            delta = m + (alpha / (1 - alpha) * (c - ci[i]) if correct else 0)
            v = w
            for j in range(p.K):
                ahead = w + j * delta - v
                v = p.step(v, alpha * p.grad(i, v + rho * unit(ahead)) + (1 - alpha) * delta, p.lr(t))
            directions.append((w - v) / (p.lr(t) * p.K))
            changes.append(directions[-1] - c)
            ci[i] = ci[i] + changes[-1]
            moves.append(v - w)
            cosines.append(agreement * (unit(w - v) @ unit(m)) + 1 if m.any() else 0.0)
        w, m, c = w + sum(moves) / len(moves), sum(directions) / len(directions), c + sum(changes) / p.N
        alpha = (1 - lam) * alpha + lam * np.clip(np.mean(cosines), 0.1, 0.9)
    return w


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_transcription(lam: float, correct: bool) -> None:
    method = FedWMSAM(rho=0.3, alpha=0.3, lam=lam, correction=correct)
    assert_agrees(lambda p: transcription(p, 0.3, 0.3, lam, correct), method)


def test_transcription_with_the_released_sign() -> None:
    assert_agrees(lambda p: transcription(p, -0.3, 0.3, 0.1), FedWMSAM(rho=0.3, alpha=0.3, lam=0.1, flip_sign=True))


def test_transcription_with_the_papers_weight() -> None:
    method = FedWMSAM(rho=0.3, alpha=0.3, lam=0.3, rising_weight=True)
    assert_agrees(lambda p: transcription(p, 0.3, 0.3, 0.3, agreement=1), method)


def test_the_weight_of_the_paper_rises_where_that_of_the_code_falls() -> None:
    """On one quadratic, whose clients go where the momentum points."""
    q = two_quadratics()
    weights = [q.run(FedWMSAM(rho=0.0, alpha=0.5, lam=0.5, rising_weight=rises), 3)[0].a for rises in (False, True)]
    assert weights[0].item() < weights[1].item()


def test_the_first_local_step_is_unperturbed() -> None:
    q = two_quadratics()
    method = FedWMSAM(rho=0.3)
    server, kept = q.run(method, 2)
    q.asked.clear()
    q.round(method, server, kept, [0, 1], 2)
    assert torch.equal(q.asked[0], server.w.expand(2, -1))
    assert (q.asked[1] - server.w).norm() > 0.1


def test_a_weight_of_one_is_finite() -> None:
    assert np.isfinite(Problem().simulate(FedWMSAM(alpha=1.0, lam=0.0))).all()


def test_the_weight_follows_how_much_clients_agree_with_the_momentum() -> None:
    """Moves along -m (m is uphill) agree with it: the weight of the fresh gradient falls; opposed ones raise it."""
    method = FedWMSAM(lam=0.5, alpha=0.5)
    server = method.init_server(torch.zeros(2).double())
    for likeness, expected in ((0.0, 0.3), (2.0, 0.7)):
        mean = method.mean(torch.zeros(2), torch.tensor([likeness]).double(), torch.zeros(2))
        ctx = type("Ctx", (), {"share": 0.5})
        assert method.update(server, mean, ctx).a.item() == pytest.approx(expected)
