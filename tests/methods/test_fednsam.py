from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from fedflat.rounds.cost import gradients_per_step, vector_cost
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedNSAM = find("FedNSAM")


def transcription(p: Problem, rho: float, gamma: float, server_lr: float, local: bool) -> np.ndarray:
    w, m = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        ahead, e = w + gamma * m, -rho * unit(m)
        moves = []
        for i in cohort:
            v = ahead
            for _ in range(p.K):
                shift = rho * unit(p.grad(i, v)) if local else e
                v = p.step(v, p.grad(i, v + shift), p.lr(t))
            moves.append(v - ahead)
        m = gamma * m + server_lr * p.mean(cohort, moves)
        w = w + m
    return w


@pytest.mark.parametrize("perturbation", ["momentum", "local"])
@pytest.mark.parametrize("server_lr", [1.0, 0.6])
def test_transcription(perturbation: str, server_lr: float) -> None:
    method = FedNSAM(rho=0.3, gamma=0.7, perturbation=perturbation, server_lr=server_lr)
    local = perturbation == "local"
    assert_agrees(lambda p: transcription(p, 0.3, 0.7, server_lr, local), method, ("uniform", "samples"))


@pytest.mark.parametrize("perturbation", ["momentum", "local"])
def test_the_model_is_the_mean_of_the_local_ones(perturbation: str) -> None:
    """w + m = w + gamma m + mean (w_i - w - gamma m), and clients start at w + gamma m."""
    q = two_quadratics()
    method = FedNSAM(perturbation=perturbation)
    before, kept = q.run(method, 3)
    down = method.broadcast(before)
    torch.testing.assert_close(down.w, before.w + 0.85 * before.m, rtol=0, atol=1e-15)
    ends = q.local(method, down.map(lambda x: x.expand(2, -1)), method.init_client(down), [0, 1]).w
    after, _ = q.round(method, before, kept, [0, 1], 3)
    torch.testing.assert_close(after.w, ends.mean(0), rtol=0, atol=1e-14)


def test_the_perturbation_points_against_the_servers_last_moves() -> None:
    q = two_quadratics(steps=1)
    method = FedNSAM(rho=0.5)
    server, kept = q.run(method, 2)
    q.asked.clear()
    q.round(method, server, kept, [0, 1], 2)
    e = q.asked[0][0] - server.w - 0.85 * server.m
    torch.testing.assert_close(e, -0.5 * server.m / server.m.norm(), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("hyper", "down", "gradients"),
    [
        ({}, 2, 1),
        ({"rho": 0.0}, 1, 1),
        ({"perturbation": "local"}, 1, 2),
        ({"perturbation": "local", "rho": 0.0}, 1, 1),
    ],
)
def test_the_momentum_is_sent_only_where_it_perturbs(hyper: dict, down: int, gradients: int) -> None:
    method = FedNSAM(**hyper)
    assert (vector_cost(method).down, gradients_per_step(method)) == (down, gradients)
