from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.core.objective import Batch
from fedflat.methods import find
from support.federation import simulation
from support.problem import Problem, assert_agrees

MimeLite = find("MimeLite")


def transcription(p: Problem, beta: float) -> np.ndarray:
    w, m = p.w0, np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, (1 - beta) * p.grad(i, v) + beta * m, p.lr(t))
            ends.append(v)
        m = (1 - beta) * p.mean(cohort, [p.grad(i, w) for i in cohort]) + beta * m
        w = p.mean(cohort, ends)
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.6), MimeLite(beta=0.6), ("uniform", "samples"))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_the_full_gradient_is_over_all_samples_whatever_the_batches(executor: str) -> None:
    """One round with everybody and beta = 0.5: m is half the mean of the clients' full gradients at w^0."""
    sim = simulation(MimeLite(beta=0.5), participation=1.0, client={"batch_size": 4}, executor=executor)
    w = sim.w.clone()
    sim.round()
    gradients = [sim.objective.gradient(w, Batch(*sim.data.client(i))) for i in range(sim.data.clients)]
    torch.testing.assert_close(sim.server.m, 0.5 * torch.stack(gradients).mean(0), rtol=0, atol=1e-14)
