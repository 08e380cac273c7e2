from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.core.objective import Batch
from fedflat.methods import find
from support.federation import federation, simulation
from support.problem import Problem, assert_agrees
from support.quadratics import two_quadratics

FedAvg = find("FedAvg")


def transcription(p: Problem, server_lr: float = 1.0) -> np.ndarray:
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v), p.lr(t))
            ends.append(v - w)
        w = w + server_lr * p.mean(cohort, ends)
    return w


def test_transcription() -> None:
    assert_agrees(transcription, FedAvg(), ("uniform", "samples"))
    assert_agrees(lambda p: transcription(p, 0.5), FedAvg(server_lr=0.5), ("uniform", "samples"))


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_one_full_batch_step_of_everybody_is_gradient_descent(weights: str) -> None:
    """With sample weights on the pooled loss, with uniform weights on the mean of the clients' losses."""
    data = federation()
    sim = simulation(FedAvg(), participation=1.0, weights=weights, client={"batch_size": None, "epochs": 1, "lr": 0.3})
    w = sim.w.clone()
    sim.round()
    if weights == "samples":
        gradient = sim.objective.gradient(w, Batch(data.x, data.y))
    else:
        gradient = torch.stack([sim.objective.gradient(w, Batch(*data.client(i))) for i in range(data.clients)]).mean(0)
    torch.testing.assert_close(sim.w, w - 0.3 * gradient, rtol=0, atol=1e-14)


def test_local_steps_pull_it_off_the_optimum() -> None:
    """The client drift that the other methods are about: FedAvg's fixed point is not the optimum."""
    q = two_quadratics()
    server, _ = q.run(FedAvg(), 400)
    assert (server.w - q.optimum).norm() > 0.1
