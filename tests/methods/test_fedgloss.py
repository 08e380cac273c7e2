from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedGloSS = find("FedGloSS")


def transcription(p: Problem, rho, rho_l: float, beta: float, eta: float = 1.0, extra: bool = False) -> np.ndarray:
    """The algorithm figure, with duals sigma of gradient scale; `rho` gives the server's radius of round t."""
    w, delta = p.w0, np.zeros_like(p.w0)
    sigma, si = np.zeros_like(w), [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        ahead = w + rho(t) * unit(delta)
        ends = []
        for i in cohort:
            v = ahead
            for _ in range(p.K):
                g = p.grad(i, v)
                sharp = p.grad(i, v + rho_l * unit(g)) if rho_l else g
                v = p.step(v, sharp - si[i] + (v - ahead) / beta, p.lr(t))
            si[i] = si[i] - (v - ahead) / beta
            ends.append(v)
        delta = p.mean(cohort, [ahead - v for v in ends])
        change = sum(v - ahead for v in ends) / (beta * p.N)
        sigma = sigma - (change / len(cohort) if extra else change)
        w = w - eta * delta - beta * sigma
    return w


@pytest.mark.parametrize("rho_l", [0.3, 0.0])
def test_transcription(rho_l: float) -> None:
    method = FedGloSS(rho=0.2, rho_0=0.2, rho_l=rho_l, beta=5.0, server_lr=0.7)
    assert_agrees(lambda p: transcription(p, lambda t: 0.2, rho_l, 5.0, 0.7), method, ("uniform", "samples"))


def test_transcription_of_the_warm_up() -> None:
    method = FedGloSS(rho=0.3, rho_0=0.1, rho_l=0.2, beta=5.0, warm_up=4)
    assert_agrees(lambda p: transcription(p, lambda t: 0.1 + 0.2 * min(t / 4, 1), 0.2, 5.0), method)


def test_transcription_of_the_released_options() -> None:
    method = FedGloSS(rho=0.1, rho_l=0.3, beta=5.0, warm_up=3, released_schedule=True, sigma_div_active=True)
    assert_agrees(lambda p: transcription(p, lambda t: 0.3 if t < 3 else 0.1, 0.3, 5.0, extra=True), method)


def test_clients_start_at_the_perturbed_model_and_the_server_moves_the_unperturbed_one() -> None:
    q = two_quadratics()
    method = FedGloSS(rho=0.4, rho_l=0.0)
    before, kept = q.run(method, 2)
    q.asked.clear()
    after, _ = q.round(method, before, kept, [0, 1], 2)
    shift = q.asked[0][0] - before.w
    torch.testing.assert_close(shift, 0.4 * before.last / before.last.norm(), rtol=0, atol=1e-10)
    torch.testing.assert_close(after.w, before.w - after.last + after.h, rtol=0, atol=1e-13)
