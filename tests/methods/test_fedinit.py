from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from fedflat.rounds.cost import vector_cost
from support.federation import final_w, simulation
from support.problem import Problem, assert_agrees

FedInit = find("FedInit")


def transcription(p: Problem, beta: float, initial: bool, updates: bool, server_lr: float) -> np.ndarray:
    w, last = p.w0, {}
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            start = w + beta * (w - last.get(i, p.w0 if initial else w))
            v = start
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v), p.lr(t))
            moves.append(v - (start if updates else w))
            last[i] = v
        w = w + server_lr * p.mean(cohort, moves)
    return w


@pytest.mark.parametrize("first", ["none", "initial"])
@pytest.mark.parametrize("aggregate", ["models", "updates"])
@pytest.mark.parametrize("server_lr", [1.0, 0.7])
def test_transcription(first: str, aggregate: str, server_lr: float) -> None:
    method = FedInit(beta=0.4, first=first, aggregate=aggregate, server_lr=server_lr)
    expected = lambda p: transcription(p, 0.4, first == "initial", aggregate == "updates", server_lr)  # noqa: E731
    assert_agrees(expected, method, ("uniform", "samples"))


@pytest.mark.parametrize(
    "changed",
    [{"aggregate": "updates"}, {"first": "initial"}],
    ids=["models are updates", "the first round does not matter"],
)
def test_with_everybody_in_every_round_the_options_are_equal(changed: dict) -> None:
    """The mean of w - w_last is then zero, and in round 0 everybody starts at the initial model."""
    one, other = (final_w(FedInit(beta=0.4, **c), participation=6) for c in ({}, changed))
    assert (one - other).abs().max() <= 1e-12


@pytest.mark.parametrize("changed", [{"aggregate": "updates"}, {"first": "initial"}], ids=["updates", "initial"])
def test_with_some_in_a_round_they_are_not(changed: dict) -> None:
    assert (final_w(FedInit(beta=0.4, **changed)) - final_w(FedInit(beta=0.4))).abs().max() > 1e-3


def test_a_client_keeps_its_local_model_and_starts_on_the_other_side() -> None:
    sim = simulation(FedInit(beta=0.5), participation=[[1], [1, 2]], rounds=2)
    sim.round()
    method, down = sim.method, sim.method.broadcast(sim.server)
    kept = sim._store.get(np.array([1, 2]), down.map(lambda x: x.expand(2, -1)))
    torch.testing.assert_close(kept.last[0], sim.server.w, rtol=0, atol=1e-15)  # alone in its round, it is the mean
    torch.testing.assert_close(method.start(down, kept)[1], sim.server.w, rtol=0, atol=0)
    moved = down.map(lambda x: x + 1)
    torch.testing.assert_close(method.start(moved, kept)[0], sim.server.w + 1.5, rtol=0, atol=1e-14)


def test_only_who_asks_for_the_initial_model_is_sent_it() -> None:
    assert [vector_cost(FedInit(first=first)).down for first in ("none", "initial")] == [1, 2]
