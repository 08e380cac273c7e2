from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.federation import federation, final_w, simulation
from support.problem import Problem, assert_agrees
from support.quadratics import two_quadratics

Scaffold = find("Scaffold")


def transcription(p: Problem, server_lr: float = 1.0) -> np.ndarray:
    w, c = p.w0, np.zeros_like(p.w0)
    ci = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        moves, changes = [], []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v) - ci[i] + c, p.lr(t))
            new = ci[i] - c + (w - v) / (p.K * p.lr(t))
            moves.append(v - w)
            changes.append(new - ci[i])
            ci[i] = new
        w = w + server_lr * p.mean(cohort, moves)
        c = c + sum(changes) / p.N
    return w


def test_transcription() -> None:
    assert_agrees(transcription, Scaffold())
    assert_agrees(lambda p: transcription(p, 0.5), Scaffold(server_lr=0.5))


def test_reaches_the_optimum_that_fedavg_misses() -> None:
    q = two_quadratics()
    server, _ = q.run(Scaffold(), 400)
    torch.testing.assert_close(server.w, q.optimum, rtol=0, atol=1e-10)


def test_full_participation_keeps_c_the_mean_of_the_clients() -> None:
    q = two_quadratics()
    server, kept = q.run(Scaffold(), 5)
    torch.testing.assert_close(server.c, torch.stack([kept[i].c for i in range(2)]).mean(0), rtol=0, atol=1e-14)
    assert server.c.norm() > 0.01


def test_client_variate_is_the_mean_of_the_gradients_it_met() -> None:
    q = two_quadratics()
    server, kept = q.run(Scaffold(), 3)
    q.asked.clear()
    _, kept = q.round(Scaffold(), server, kept, [0, 1], 3)
    met = torch.stack([q.a * (w - q.b) for w in q.asked]).mean(0)
    torch.testing.assert_close(torch.stack([kept[0].c, kept[1].c]), met, rtol=0, atol=1e-13)


def test_one_client_in_all_is_plain_sgd() -> None:
    data = federation(sizes=(9,))
    one = final_w(Scaffold(), data=data, participation=1)
    torch.testing.assert_close(one, final_w(find("FedAvg")(), data=data, participation=1), rtol=0, atol=1e-12)


def test_decay_of_the_rate_cancels_in_the_variates() -> None:
    """c and c_i are gradients: with the rate decayed to almost nothing they stay of gradient size."""
    sim = simulation(Scaffold(), client={"lr": 0.1, "lr_decay": 0.1})
    sizes = [float(sim.server.c.norm()) for _ in sim]
    assert 0.1 < sizes[-1] / sizes[0] < 10
