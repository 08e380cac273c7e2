from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.problem import Problem, assert_agrees

RULES = {
    "FedAdam": lambda v, d, b2: b2 * v + (1 - b2) * d**2,
    "FedYogi": lambda v, d, b2: v - (1 - b2) * d**2 * np.sign(v - d**2),
    "FedAdagrad": lambda v, d, b2: v + d**2,
}


def transcription(p: Problem, rule, eta: float, b1: float, b2: float, tau: float, v0: float) -> np.ndarray:
    w, m, v = p.w0, np.zeros_like(p.w0), np.full_like(p.w0, v0)
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            u = w
            for _ in range(p.K):
                u = p.step(u, p.grad(i, u), p.lr(t))
            moves.append(u - w)
        d = p.mean(cohort, moves)
        m = b1 * m + (1 - b1) * d
        v = rule(v, d, b2)
        w = w + eta * m / (np.sqrt(v) + tau)
    return w


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("v0", [None, 0.0])
def test_transcription(name: str, v0: float | None) -> None:
    start = 0.03**2 if v0 is None else v0
    method = find(name)(server_lr=0.2, beta1=0.6, beta2=0.9, tau=0.03, v0=v0)
    assert_agrees(lambda p: transcription(p, RULES[name], 0.2, 0.6, 0.9, 0.03, start), method, ("uniform", "samples"))


@pytest.mark.parametrize("name", RULES)
def test_a_large_tau_is_fedavg(name: str) -> None:
    """tau -> infinity with server_lr = tau a, beta1 = 0 and v0 = 0: server rate a."""
    scaled = find(name)(tau=1e8, server_lr=0.7e8, beta1=0.0, v0=0.0)
    difference = Problem().simulate(scaled) - Problem().simulate(find("FedAvg")(server_lr=0.7))
    assert np.abs(difference).max() < 1e-7


@pytest.mark.parametrize("name", RULES)
def test_v_stays_positive_and_yogi_grows_only_below_the_square(name: str) -> None:
    method = find(name)()
    server = method.init_server(torch.zeros(4).double())
    assert torch.equal(server.v, torch.full((4,), 0.01**2, dtype=torch.float64))
    for k in range(50):
        delta = torch.sin(torch.arange(4.0).double() + k) * 0.1
        after = method.update(server, method.mean(delta), None)
        assert (after.v >= 0).all()
        if name == "FedYogi":
            assert torch.equal(after.v > server.v, server.v < delta.square())
        server = after


def test_adagrads_beta1_is_zero_as_in_the_paper() -> None:
    assert find("FedAdagrad")().beta1 == 0
