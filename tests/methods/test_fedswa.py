from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.core.descent import Descent
from fedflat.core.local import local_round, lr_factors_of
from fedflat.core.method import Context
from fedflat.core.records import Model, Nothing
from fedflat.methods import find
from support.federation import federation, final_w, simulation
from support.problem import Problem, assert_agrees
from support.quadratic_clients import LR, bowls

FedSWA = find("FedSWA")


def rates(eta: float, rho: float, K: int) -> list[float]:
    """The step sizes of a round: from eta in equal steps towards rho eta, which step K would have."""
    return np.linspace(eta, rho * eta, K + 1)[:K].tolist()


def transcription(p: Problem, rho: float, alpha: float) -> np.ndarray:
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for lr in rates(p.lr(t), rho, p.K):
                v = p.step(v, p.grad(i, v), lr)
            moves.append(v - w)
        w = w + alpha * p.mean(cohort, moves)
    return w


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_transcription(rho: float) -> None:
    method = FedSWA(rho=rho, server_lr=1.3)
    assert_agrees(lambda p: transcription(p, rho, 1.3), method, ("uniform", "samples"))


def test_a_single_local_step_is_fedavgs() -> None:
    one_step = {"client": {"steps": 1, "epochs": None}}
    difference = final_w(FedSWA(server_lr=1.3), **one_step) - final_w(find("FedAvg")(server_lr=1.3), **one_step)
    assert difference.abs().max() <= 1e-12


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_clients_with_unlike_numbers_of_steps_have_schedules_of_their_own(executor: str) -> None:
    """Client i takes one step for each of its samples."""
    F = bowls(3, sizes=(5, 1, 3))
    sim = F.simulation(FedSWA(rho=0.2, server_lr=1.5), steps=None, rounds=2, participation=3, executor=executor)
    w = F.w
    for _ in range(2):
        moves = []
        for i in range(3):
            v = w
            for lr in rates(LR, 0.2, F.sizes[i]):
                v = v - lr * F.gradient(i, v)
            moves.append(v - w)
        w = w + 1.5 * sum(moves) / 3
    np.testing.assert_allclose(sim.run().w.numpy(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rho", "K"), [(0.0, 1), (0.1, 7), (0.5, 50), (1.0, 3)])
def test_every_hook_is_told_the_papers_sum_of_the_step_sizes(rho: float, K: int) -> None:
    """lr (K (1 + rho) + (1 - rho)) / 2 after the last step, and before it the sum so far."""
    seen = {}

    class Spy(FedSWA):
        """client  -  server  -"""

        def step(self, w, client, down, grad, ctx):
            seen["step"] = ctx.lr_sum
            return super().step(w, client, down, grad, ctx)

        def finish(self, w, client, down, ctx):
            seen["finish"] = ctx.lr_sum
            return super().finish(w, client, down, ctx)

        def receive(self, up, ctx):
            seen["receive"] = ctx.lr_sum
            return super().receive(up, ctx)

        def update(self, server, mean, ctx):
            seen["update"] = ctx.lr_sum
            return super().update(server, mean, ctx)

    bowls(2, sizes=(1, 1)).simulation(Spy(rho=rho), steps=K, rounds=1, participation=2).round()
    total = LR * (K * (1 + rho) + (1 - rho)) / 2
    last = LR * (1 - (1 - rho) * (K - 1) / K)
    assert {name: x.unique().tolist() for name, x in seen.items()} == {
        "step": pytest.approx([total - last], rel=1e-12, abs=1e-15),
        "finish": pytest.approx([total]),
        "receive": pytest.approx([total]),
        "update": pytest.approx([total]),
    }


def test_a_server_works_the_sum_out_to_the_last_bit() -> None:
    """In single precision, where the order of additions shows."""
    method, steps = FedSWA(rho=0.3), torch.tensor([[37.0], [5.0], [2.0]])
    ctx, w = Context(0, 0.1, 1.0, local_steps=steps), Model(torch.zeros(3, 2))
    work = [(lambda w: w, int((steps > k).sum())) for k in range(37)]
    trained = local_round(method, w, Nothing(), work, ctx, Descent(0.1)).lr_factors
    alone = torch.cat([lr_factors_of(method, ctx, one[None]) for one in steps])
    assert torch.equal(trained, alone)


def test_in_every_executor_the_sum_of_the_factors_has_the_same_mean() -> None:
    """Tracking error divides by it; the mean over clients of the paper's closed form, in whatever order."""
    data = federation(sizes=(5, 12, 3))
    counts = [2 * -(-n // 4) for n in (5, 12, 3)]
    expected = 0.1 * np.mean([(K * 1.1 + 0.9) / 2 for K in counts])
    for executor in ("sequential", "stacked"):
        sim = simulation(FedSWA(), data=data, participation=3, executor=executor)
        before = sim._server.state.w.clone()
        sim.round()
        moved = before - sim._server.state.w
        step = expected * sim.method.server_lr
        torch.testing.assert_close(sim._server.direction * step, moved, rtol=1e-12, atol=1e-14)
