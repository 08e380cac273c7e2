from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees

FedAvgM = find("FedAvgM")


def transcription(p: Problem, beta: float, server_lr: float = 1.0, nesterov: bool = False) -> np.ndarray:
    w, m = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v), p.lr(t))
            moves.append(v - w)
        m = beta * m + p.mean(cohort, moves)
        w = w + server_lr * (beta * m + p.mean(cohort, moves) if nesterov else m)
    return w


@pytest.mark.parametrize("nesterov", [False, True])
def test_transcription(nesterov: bool) -> None:
    method = FedAvgM(beta=0.7, server_lr=0.5, nesterov=nesterov)
    assert_agrees(lambda p: transcription(p, 0.7, 0.5, nesterov), method, ("uniform", "samples"))


def test_constant_moves_add_up_to_their_sum_over_one_minus_beta() -> None:
    """Heavy ball without a factor 1 - beta: a constant move of 1 makes m tend to 1 / (1 - beta)."""
    method = FedAvgM(beta=0.8)
    server = method.init_server(torch.zeros(1).double())
    for _ in range(200):
        server = method.update(server, method.mean(torch.ones(1).double()), None)
    assert server.m.item() == pytest.approx(1 / (1 - 0.8))
