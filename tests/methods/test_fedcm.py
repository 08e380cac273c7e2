from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.core.method import Context
from fedflat.methods import find
from support.problem import Problem, assert_agrees
from support.quadratics import two_quadratics

FedCM = find("FedCM")


def transcription(p: Problem, alpha: float, absolute: float | None = None) -> np.ndarray:
    w, delta = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        directions, moves = [], []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, alpha * p.grad(i, v) + (1 - alpha) * delta, p.lr(t))
            directions.append((w - v) / (p.K * p.lr(t)))
            moves.append(v - w)
        delta = p.mean(cohort, directions)
        w = w + p.mean(cohort, moves) if absolute is None else w - absolute * delta
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.3), FedCM(alpha=0.3), ("uniform", "samples"))
    literal = FedCM(alpha=0.3, server_lr=0.2, server_lr_mode="absolute")
    assert_agrees(lambda p: transcription(p, 0.3, absolute=0.2), literal, ("uniform", "samples"))


def test_direction_is_a_running_mean_of_the_clients_gradients() -> None:
    """Delta' = alpha mean(g) + (1 - alpha) Delta, exactly, without decay and clipping."""
    q = two_quadratics()
    before, kept = q.run(FedCM(alpha=0.3), 3)
    q.asked.clear()
    after, _ = q.round(FedCM(alpha=0.3), before, kept, [0, 1], 3)
    gradients = torch.stack([q.a * (w - q.b) for w in q.asked]).mean((0, 1))
    expected = 0.3 * gradients + 0.7 * before.direction
    torch.testing.assert_close(after.direction, expected, rtol=0, atol=1e-13)


def test_every_clients_direction_is_divided_by_its_own_number_of_steps() -> None:
    """mean (w - w_i) / (lr K_i), not the mean move over the mean K; the move itself is averaged as it is."""
    delta = torch.tensor([[2.0], [6.0]], dtype=torch.float64)
    ctx = Context(t=0, lr=0.5, share=1.0, lr_sum=torch.tensor([[0.5], [3.0]], dtype=torch.float64))
    received = FedCM().receive(FedCM.up(delta), ctx).map(lambda x: x.mean(0))
    assert received.direction.item() == pytest.approx((-2 / 0.5 - 6 / 3) / 2)
    server = FedCM().update(FedCM().init_server(torch.zeros(1).double()), received, ctx)
    assert server.w.item() == pytest.approx(4.0)
