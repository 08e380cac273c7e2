from __future__ import annotations

import numpy as np
import pytest

from fedflat.methods import find
from support.federation import federation, final_w
from support.problem import Problem, assert_agrees
from support.quadratic_clients import LR, bowls

FedMoSWA, FedSWA, Scaffold = find("FedMoSWA"), find("FedSWA"), find("Scaffold")


def rates(eta: float, rho: float, K: int) -> list[float]:
    """The step sizes of a round: from eta in equal steps towards rho eta, which step K would have."""
    return np.linspace(eta, rho * eta, K + 1)[:K].tolist()


def transcription(p: Problem, rho: float, alpha: float, gamma: float, ends: bool) -> np.ndarray:
    w, m = p.w0, np.zeros_like(p.w0)
    c = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        schedule = rates(p.lr(t), rho, p.K)
        divisor = p.K * (p.lr(t) + rho * p.lr(t)) / 2 if ends else sum(schedule)
        moves, sent = [], []
        for i in cohort:
            v = w
            for lr in schedule:
                v = p.step(v, p.grad(i, v) - c[i] + m, lr)
            c[i] = c[i] - m + (w - v) / divisor
            moves.append(v - w)
            sent.append(c[i] - m)
        w = w + alpha * sum(moves) / len(cohort)
        m = m + gamma * sum(sent) / len(cohort)
    return w


@pytest.mark.parametrize("ends", [False, True])
def test_transcription(ends: bool) -> None:
    method = FedMoSWA(rho=0.3, server_lr=1.3, gamma=0.4, lr_sum="ends" if ends else "exact")
    assert_agrees(lambda p: transcription(p, 0.3, 1.3, 0.4, ends), method)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_clients_with_unlike_numbers_of_steps(executor: str) -> None:
    """A client takes a step for each of its samples; its variate is divided by the sum of its own step sizes."""
    F = bowls(3, sizes=(5, 1, 3))
    method = FedMoSWA(rho=0.2, server_lr=1.5, gamma=0.4)
    sim = F.simulation(method, steps=None, rounds=3, participation=3, executor=executor)
    w, m, c = F.w, np.zeros_like(F.w), np.zeros_like(F.m)
    for _ in range(3):
        ends = []
        for i in range(3):
            v, schedule = w, rates(LR, 0.2, F.sizes[i])
            for lr in schedule:
                v = v - lr * (F.gradient(i, v) - c[i] + m)
            c[i] = c[i] - m + (w - v) / sum(schedule)
            ends.append(v)
        w, m = w + 1.5 * (np.mean(ends, axis=0) - w), 0.6 * m + 0.4 * c.mean(0)
    np.testing.assert_allclose(sim.run().w.numpy(), w, rtol=0, atol=1e-12)
    np.testing.assert_allclose(sim.server.c.numpy(), m, rtol=0, atol=1e-12)


def test_a_variate_is_the_mean_of_the_gradients_of_the_round_by_step_size() -> None:
    """Whatever the correction was: the lemma behind the exact divisor, which the released one misses."""
    F = bowls(1, sizes=(1,))
    for lr_sum, holds in (("exact", True), ("ends", False)):
        sim = F.simulation(FedMoSWA(rho=0.3, gamma=1.0, lr_sum=lr_sum), steps=4, rounds=1, participation=1)
        sim.round()
        v, schedule, met = F.w, rates(LR, 0.3, 4), []
        for lr in schedule:
            met.append(F.gradient(0, v))
            v = v - lr * met[-1]
        mean = np.average(met, axis=0, weights=schedule)
        assert np.allclose(sim.server.c.numpy(), mean, rtol=1e-12, atol=0) == holds


def test_the_released_divisor_is_1_plus_what_the_specification_says_too_small() -> None:
    """By 1 + (1 - rho) / (K (1 + rho)): at rho = 0.1 1.6 % with 50 steps, and 27 % with 3."""
    for K, percent in ((50, 1.6), (3, 27)):
        assert sum(rates(1.0, 0.1, K)) / (K * 1.1 / 2) == pytest.approx(1 + percent / 100, abs=0.005)


def test_everybody_always_and_no_schedule_is_scaffold() -> None:
    method = FedMoSWA(rho=1.0, server_lr=1.0, gamma=1.0)
    difference = final_w(method, participation=6) - final_w(Scaffold(), participation=6)
    assert difference.abs().max() <= 1e-12


def test_under_partial_participation_it_is_not_scaffold_with_another_weight() -> None:
    """Scaffold adds the change c_i+ - c_i, FedMoSWA c_i+ - m."""
    method = FedMoSWA(rho=1.0, server_lr=1.0, gamma=0.5)  # S / N
    assert (final_w(method) - final_w(Scaffold())).abs().max() > 1e-4


def test_always_the_same_client_is_fedswa() -> None:
    """m is then c_i, and the correction is zero."""
    data = federation(sizes=(9, 5))
    here = {"data": data, "participation": [[0]] * 5, "rounds": 5}
    difference = final_w(FedMoSWA(gamma=1.0), **here) - final_w(FedSWA(), **here)
    assert difference.abs().max() <= 1e-12
