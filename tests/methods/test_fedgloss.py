from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.core.method import Context
from fedflat.methods import find
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedGloSS = find("FedGloSS")


def transcription(p: Problem, rho, rho_l, beta: float, eta: float = 1.0, extra: bool = False) -> np.ndarray:
    """The algorithm figure, with duals sigma of gradient scale; `rho` and `rho_l` give the radii of round t."""
    w, delta = p.w0, np.zeros_like(p.w0)
    sigma, si = np.zeros_like(w), [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        ahead = w + rho(t) * unit(delta)
        ends = []
        for i in cohort:
            v = ahead
            for _ in range(p.K):
                g = p.grad(i, v)
                sharp = p.grad(i, v + rho_l(t) * unit(g)) if rho_l(t) else g
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
    assert_agrees(lambda p: transcription(p, lambda t: 0.2, lambda t: rho_l, 5.0, 0.7), method, ("uniform", "samples"))


def test_transcription_of_the_warm_up() -> None:
    method = FedGloSS(rho=0.3, rho_0=0.1, rho_l=0.2, beta=5.0, warm_up=4)
    assert_agrees(lambda p: transcription(p, lambda t: 0.1 + 0.2 * min(t / 4, 1), lambda t: 0.2, 5.0), method)


def released(rho: float, rho_l: float, rho_0: float, T_s: int, T: int) -> tuple[list[float], list[float]]:
    """The radii of server and clients by round, as the constructor of fedgloss_server.py makes its two lists."""
    if T_s <= 1:
        return [rho] * T, [rho_l] * T
    of_clients = [rho_0 + k * (rho_l - rho_0) / T_s for k in range(T_s + 1)]
    of_server = [rho_0, *[of_clients[-1] + (rho - rho_0) / T_s] * T_s]  # each from the end of the clients' list
    return of_server + [rho] * (T - len(of_server)), of_clients + [rho_l] * (T - len(of_clients))


@pytest.mark.parametrize("warm_up", [0, 1, 2, 3])
def test_transcription_of_the_released_options(warm_up: int) -> None:
    """Clients and server are seen after the warm-up, too: there are more rounds."""
    method = FedGloSS(
        rho=0.1, rho_l=0.3, rho_0=0.02, beta=5.0, warm_up=warm_up, released_schedule=True, sigma_div_active=True
    )
    server, clients = released(0.1, 0.3, 0.02, warm_up, 20)
    assert_agrees(lambda p: transcription(p, lambda t: server[t], lambda t: clients[t], 5.0, extra=True), method)


def test_executors_that_give_the_round_as_a_tensor_have_the_same_radius() -> None:
    method = FedGloSS(rho_l=0.3, warm_up=4, released_schedule=True)
    for t in range(7):
        number, tensor = (method._client_radius(Context(t=at, lr=0.1, share=1.0)) for at in (t, torch.tensor(float(t))))
        assert float(tensor) == pytest.approx(number, rel=1e-6)


def test_clients_start_at_the_perturbed_model_and_the_server_moves_the_unperturbed_one() -> None:
    q = two_quadratics()
    method = FedGloSS(rho=0.4, rho_l=0.0)
    before, kept = q.run(method, 2)
    q.asked.clear()
    after, _ = q.round(method, before, kept, [0, 1], 2)
    shift = q.asked[0][0] - before.w
    torch.testing.assert_close(shift, 0.4 * before.last / before.last.norm(), rtol=0, atol=1e-10)
    torch.testing.assert_close(after.w, before.w - after.last + after.h, rtol=0, atol=1e-13)
