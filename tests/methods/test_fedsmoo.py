from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from fedflat.rounds.cost import vector_cost
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedSMOO = find("FedSMOO")


def transcription(
    p: Problem, r: float, beta: float, reg: bool = True, correct: bool = True, mu_only: bool = False, alpha: float = 1.0
) -> np.ndarray:
    """The paper's form with duals lambda of gradient scale."""
    zero = np.zeros_like(p.w0)
    w, s, lam = p.w0, zero, zero
    mu, lam_i = [zero] * p.N, [zero] * p.N
    on = 1.0 if reg else 0.0
    for t, cohort in enumerate(p.cohorts):
        ends, sent = [], []
        for i in cohort:
            v = w
            for _ in range(p.K):
                s_i = r * unit(alpha * (p.grad(i, v) - mu[i]) - s)
                if correct:
                    mu[i] = mu[i] + (s_i - s) / alpha
                v = p.step(v, p.grad(i, v + s_i) - lam_i[i] + on * (v - w) / beta, p.lr(t))
            sent.append(alpha * mu[i] - (0 if mu_only else s_i))
            lam_i[i] = lam_i[i] - on * (v - w) / beta
            ends.append(v)
        s = r * unit(sum(sent) / len(sent)) if correct else s
        lam = lam - on * sum(v - w for v in ends) / (beta * p.N)
        w = p.mean(cohort, ends) - beta * lam
    return w


@pytest.mark.parametrize("reg", [True, False])
@pytest.mark.parametrize("correct", [True, False])
def test_transcription(reg: bool, correct: bool) -> None:
    method = FedSMOO(rho=0.3, beta=5.0, dynamic_reg=reg, sam_correction=correct)
    weights = ("uniform",) if reg else ("uniform", "samples")
    assert_agrees(lambda p: transcription(p, 0.3, 5.0, reg, correct), method, weights)


def test_transcription_with_another_alpha() -> None:
    method = FedSMOO(rho=0.3, beta=5.0, alpha=0.4)
    assert_agrees(lambda p: transcription(p, 0.3, 5.0, alpha=0.4), method)


def test_what_is_switched_off_is_neither_sent_nor_kept() -> None:
    costs = [
        vector_cost(FedSMOO(dynamic_reg=reg, sam_correction=sam)) for reg in (True, False) for sam in (True, False)
    ]
    assert [(c.down, c.up, c.client) for c in costs] == [(2, 2, 2), (1, 1, 1), (2, 2, 1), (1, 1, 0)]


def test_transcription_of_the_released_server() -> None:
    method = FedSMOO(rho=0.3, beta=5.0, s_from_mu_only=True)
    assert_agrees(lambda p: transcription(p, 0.3, 5.0, mu_only=True), method)


def test_perturbations_have_length_rho() -> None:
    q = two_quadratics()
    server, _ = q.run(FedSMOO(rho=0.2), 3)
    # a norm of n is divided by n + 1e-12, so the length is right to about 1e-12 / n
    torch.testing.assert_close(server.s.norm(), torch.tensor(0.2, dtype=torch.float64), rtol=0, atol=1e-10)
    for here, there in zip(q.asked[::2], q.asked[1::2], strict=True):
        torch.testing.assert_close(
            (there - here).norm(dim=-1), torch.full((2,), 0.2, dtype=torch.float64), rtol=0, atol=1e-10
        )


def test_first_step_of_all_perturbs_along_the_gradient() -> None:
    q = two_quadratics()
    q.run(FedSMOO(rho=0.2), 1)
    gradient = q.a * (q.asked[0] - q.b)
    expected = 0.2 * gradient / gradient.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(q.asked[1] - q.asked[0], expected, rtol=0, atol=1e-12)


def test_dual_of_the_perturbation_is_kept_across_rounds_but_the_last_perturbation_is_not() -> None:
    assert FedSMOO.client.marked("per_round") == {"s_i"}
    q = two_quadratics()
    _, kept = q.run(FedSMOO(), 2)
    assert kept[0].mu.norm() > 0


def test_zero_direction_gives_no_perturbation() -> None:
    q = two_quadratics(steps=1)
    method = FedSMOO(rho=0.5)
    down = method.broadcast(method.init_server(q.b[0])).map(lambda x: x.expand(1, -1))
    result = q.local(method, down, method.init_client(down), [0])
    assert torch.equal(result.w[0], q.b[0])
