from __future__ import annotations

import numpy as np
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedLESAM = find("FedLESAM")


def transcription(p: Problem, rho: float) -> np.ndarray:
    w = p.w0
    old: dict[int, np.ndarray] = {}
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            e = rho * unit(old[i] - w) if i in old else np.zeros_like(w)
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v + e), p.lr(t))
            moves.append(v - w)
            old[i] = w
        w = w + p.mean(cohort, moves)
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.3), FedLESAM(rho=0.3), ("uniform", "samples"))


def test_first_participation_is_unperturbed_later_ones_go_back_along_the_servers_move() -> None:
    q = two_quadratics(steps=1)
    method = FedLESAM(rho=0.2)
    server, kept = q.run(method, 2, cohorts=[[0], [0]])
    assert torch.equal(q.asked[0][0], torch.zeros(2).double())
    start = server.w
    q.asked.clear()
    q.round(method, server, kept, [0, 1], 2)
    move = start - kept[0].w_old
    torch.testing.assert_close(q.asked[0][0], start - 0.2 * move / move.norm(), rtol=0, atol=1e-12)
    assert torch.equal(q.asked[0][1], start), "client 1 takes part for the first time"


def test_perturbation_is_constant_over_the_round_and_costs_no_gradient() -> None:
    """For a shift e the path is that of gradient descent on the shifted quadratic."""
    q = two_quadratics()
    method = FedLESAM(rho=0.2)
    server, kept = q.run(method, 1)
    q.asked.clear()
    down = method.broadcast(server).map(lambda x: x.expand(2, -1))
    client = kept[0].map(lambda *xs: torch.stack(xs), kept[1])
    result = q.local(method, down, client, [0, 1])
    assert len(q.asked) == q.steps
    e = 0.2 * (client.w_old - down.w) / (client.w_old - down.w).norm(dim=-1, keepdim=True)
    centre = q.b - e
    closed_form = centre + (1 - q.lr * q.a) ** q.steps * (down.w - centre)
    torch.testing.assert_close(result.w, closed_form, rtol=0, atol=1e-12)


def test_a_server_that_stands_still_gives_no_perturbation() -> None:
    q = two_quadratics(steps=1)
    method = FedLESAM(rho=0.5)
    server, kept = q.run(method, 1)
    here = server.map(torch.zeros_like)  # back where the clients saw it last
    q.asked.clear()
    q.round(method, here, kept, [0, 1], 1)
    assert torch.equal(q.asked[0], torch.zeros(2, 2).double())
