from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.core.method import teacher_gradient
from fedflat.core.objective import Batch, BatchOracle, Objective
from fedflat.methods import find
from fedflat.rounds.cost import gradients_per_step
from support.federation import simulation, tanh_network
from support.problem import Problem, Tanh, assert_agrees, softmax, unit

FedSOL = find("FedSOL")


def proximal_gradient(p: Problem, i: int, w: np.ndarray, teacher: np.ndarray, tau: float) -> np.ndarray:
    """The derivative of KL(s(z_w0 / tau) || s(z / tau)) by z is (s(z / tau) - s(z_w0 / tau)) / tau."""
    x, y = p.data[i]
    error = (softmax(p.scores(w, x) / tau) - softmax(p.scores(teacher, x) / tau)) / tau / len(y)
    return p.model.pull(w, x, error)[0]


def layers(p: Problem) -> list[slice]:
    """The parameters of the model, one after another, as the module has them."""
    ends = np.cumsum([x.numel() for x in p.module.parameters()])
    return [slice(end - x.numel(), end) for end, x in zip(ends, p.module.parameters(), strict=True)]


def transcription(p: Problem, rho: float, tau: float, adaptive: bool) -> np.ndarray:
    w = p.w0
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v = w
            for k in range(p.K):
                e = rho * unit(proximal_gradient(p, i, v, w, tau)) if k else np.zeros_like(v)
                if adaptive:
                    e = e * np.concatenate([np.abs(unit((v - w)[layer])) for layer in layers(p)])
                v = p.step(v, p.grad(i, v + e), p.lr(t))
            ends.append(v)
        w = p.mean(cohort, ends)
    return w


@pytest.mark.parametrize("adaptive", [False, True])
def test_transcription(adaptive: bool) -> None:
    method = FedSOL(rho=0.7, tau=2.0, adaptive="layer" if adaptive else "none")
    assert_agrees(lambda p: transcription(p, 0.7, 2.0, adaptive), method, ("uniform", "samples"))


def test_the_first_step_of_every_round_is_unperturbed_in_single_precision_too() -> None:
    """Released code has the rounding noise of a zero gradient, divided by its norm, there: as long as rho."""
    one_step = {"client": {"steps": 1, "epochs": None}, "model": tanh_network().float(), "rounds": 3}
    taught, plain = (simulation(method, **one_step).run().w for method in (FedSOL(rho=5.0), find("FedAvg")()))
    assert torch.equal(taught, plain)


def test_the_teachers_gradient_is_that_of_the_penalty_alone() -> None:
    p, e = Problem(Tanh()), np.linspace(-1, 1, len(Problem(Tanh()).w0))
    x, y = (torch.from_numpy(part) for part in p.data[0])
    oracle = BatchOracle(Objective(p.module), Batch(x, y))
    found = teacher_gradient(oracle, torch.from_numpy(p.w0), torch.from_numpy(e), 2.0)
    np.testing.assert_allclose(found.numpy(), proximal_gradient(p, 0, p.w0, e, 2.0), rtol=0, atol=1e-15)


def test_the_training_loss_is_that_at_the_iterate() -> None:
    """The pass of the teacher's gradient is the first of a step, at the iterate, and knows the task's loss there."""
    losses = []
    for method in (FedSOL(rho=1e-9), find("FedAvg")()):
        sim = simulation(method, client={"steps": 2, "epochs": None}, rounds=1)
        losses.append(sim.round().metrics["train_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_it_costs_a_gradient_more_unless_there_is_no_perturbation() -> None:
    assert (gradients_per_step(FedSOL()), gradients_per_step(FedSOL(rho=0.0))) == (2, 1)
