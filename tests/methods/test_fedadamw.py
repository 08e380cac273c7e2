from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.descent import Descent
from fedflat.core.errors import InputError
from fedflat.core.local import local_round
from fedflat.core.method import Context
from fedflat.methods import find
from fedflat.rounds.cost import gradients_per_step, method_cost, vector_cost
from support.problem import Linear, Problem, Tanh, assert_agrees

FedAdamW = find("FedAdamW")
OPTIONS = [(second, first) for second in ("full", "tensor") for first in ("round", "run")]


def tensors(p: Problem) -> list[slice]:
    """The places of weights and biases in the vector."""
    sizes = [q.numel() for q in p.module.parameters()]
    ends = np.cumsum([0, *sizes])
    return [slice(*pair) for pair in pairwise(ends)]


def transcription(
    p: Problem, alpha: float, beta1: float, beta2: float, eps: float, second: str = "full", first: str = "round"
) -> np.ndarray:
    """All clients take the same number of steps, so b is 1 - beta2^T and v / b is the corrected second moment."""
    w, delta, mean_v, done = p.w0, np.zeros_like(p.w0), np.zeros_like(p.w0), 0
    for t, cohort in enumerate(p.cohorts):
        ends, moments = [], []
        for i in cohort:
            x, m, v = w, np.zeros_like(w), mean_v
            for k in range(1, p.K + 1):
                g = p.grad(i, x)
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g**2
                corrected = m / (1 - beta1 ** (k + (done if first == "run" else 0)))
                d = corrected / (np.sqrt(v / (1 - beta2 ** (done + k))) + eps) + alpha * delta
                x = p.step(x, d, p.lr(t))
            if second == "tensor":
                v = np.concatenate([np.full(len(v[part]), v[part].mean()) for part in tensors(p)])
            ends.append(x)
            moments.append(v)
        new, mean_v = p.mean(cohort, ends), p.mean(cohort, moments)
        delta, w, done = (w - new) / (p.lr(t) * p.K), new, done + p.K
    return w


@pytest.mark.parametrize(("second", "first"), OPTIONS)
def test_transcription(second: str, first: str) -> None:
    method = FedAdamW(alpha=0.4, beta1=0.7, beta2=0.9, eps=1e-3, second_moment=second, first_moment=first)
    weights = ("uniform", "samples")
    assert_agrees(lambda p: transcription(p, 0.4, 0.7, 0.9, 1e-3, second, first), method, weights)


def test_transcription_with_the_defaults() -> None:
    assert_agrees(lambda p: transcription(p, 0.5, 0.9, 0.999, 1e-8), FedAdamW())


def uneven(p: Problem, alpha: float, beta1: float, beta2: float, eps: float, first: str) -> np.ndarray:
    """Clients take one step for each sample: b is averaged as v is, and T counts the mean number of steps."""
    w, delta, mean_v, mean_b, done = p.w0, np.zeros_like(p.w0), np.zeros_like(p.w0), 0.0, 0.0
    for t, cohort in enumerate(p.cohorts):
        ends, moments, gathered, directions = [], [], [], []
        for i in cohort:
            x, m, v, b = w, np.zeros_like(w), mean_v, mean_b
            for k in range(1, p.steps(i) + 1):
                g = p.grad(i, x)
                m = beta1 * m + (1 - beta1) * g
                v = beta2 * v + (1 - beta2) * g**2
                b = beta2 * b + 1 - beta2
                corrected = m / (1 - beta1 ** (k + (done if first == "run" else 0)))
                x = p.step(x, corrected / (np.sqrt(v / b) + eps) + alpha * delta, p.lr(t))
            ends.append(x)
            moments.append(v)
            gathered.append(b)
            directions.append((w - x) / (p.lr(t) * p.steps(i)))
        mean_v, mean_b, delta = p.mean(cohort, moments), np.mean(gathered), p.mean(cohort, directions)
        w, done = p.mean(cohort, ends), done + np.mean([p.steps(i) for i in cohort])
    return w


@pytest.mark.parametrize("first", ["round", "run"])
def test_transcription_with_unequal_numbers_of_steps(first: str) -> None:
    method = FedAdamW(alpha=0.4, beta1=0.7, beta2=0.9, eps=1e-3, first_moment=first)
    assert_agrees(lambda p: uneven(p, 0.4, 0.7, 0.9, 1e-3, first), method, uneven=True)


def test_the_first_round_is_torchs_adamw_on_each_client_and_their_mean() -> None:
    p = Problem(Tanh(), cohorts=((0, 1, 2),))
    ends = []
    for i in (0, 1, 2):
        w = torch.tensor(p.w0, requires_grad=True)
        optimizer = torch.optim.AdamW([w], lr=p.eta, weight_decay=p.wd)
        for _ in range(p.K):
            w.grad = torch.tensor(p.grad(i, w.detach().numpy()))
            optimizer.step()
        ends.append(w.detach().numpy())
    assert np.abs(p.simulate(FedAdamW()) - np.mean(ends, axis=0)).max() <= 1e-12


def test_one_step_of_a_first_moment_is_the_gradient() -> None:
    """With K = 1 the corrected m is g for every beta1."""
    p = Problem(Tanh(), K=1)
    assert np.abs(p.simulate(FedAdamW(beta1=0.0)) - p.simulate(FedAdamW(beta1=0.95))).max() <= 1e-12


def test_without_memory_it_is_sign_descent() -> None:
    p, w = Problem(Tanh()), Problem(Tanh()).w0
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            x = w
            for _ in range(p.K):
                x = p.step(x, np.sign(p.grad(i, x)), p.lr(t))
            ends.append(x)
        w = p.mean(cohort, ends)
    got = p.simulate(FedAdamW(alpha=0.0, beta1=0.0, beta2=0.0, eps=1e-30))
    assert np.abs(got - w).max() <= 1e-10


def test_a_loss_in_other_units_gives_the_same_model() -> None:
    """Without Delta and decay, gradients and eps times 10 leave every step as it is."""
    p = Problem(Tanh(), wd=0.0)
    plain = transcription(p, 0.0, 0.7, 0.9, 1e-3)
    tenfold = Problem(Tanh(), wd=0.0)
    grad = tenfold.grad
    tenfold.grad = lambda i, w: 10 * grad(i, w)
    assert np.abs(transcription(tenfold, 0.0, 0.7, 0.9, 1e-2) - plain).max() <= 1e-10
    assert np.abs(p.simulate(FedAdamW(alpha=0.0, beta1=0.7, beta2=0.9, eps=1e-3)) - plain).max() <= 1e-10


def test_the_mean_of_a_tensor_of_one_number_is_the_number() -> None:
    shapes, server = ((1,),) * 3, torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    finals = []
    for second in ("full", "tensor"):
        method = FedAdamW(second_moment=second).on_model(shapes)
        finals.append(two_rounds(method, server))
    assert torch.equal(*finals)


def two_rounds(method: ff.Method, w: torch.Tensor) -> torch.Tensor:
    """Two rounds of one client with two steps, on the gradient of a quartic."""
    server = method.init_server(w)
    for t in range(2):
        down = method.broadcast(server).map(lambda x: x[None])
        ctx = Context(t=t, lr=0.1, share=1.0, local_steps=2.0)
        result = local_round(method, down, method.init_client(down), [(lambda x: x**3, 1)] * 2, ctx, Descent(0.1))
        at = replace(ctx, steps=result.steps, lr_sum=0.1 * result.steps)
        mean = method.receive(result.up, at).map(lambda x: x.mean(0))
        server = method.update(server, mean, replace(at, steps=result.steps[0], lr_sum=0.1 * result.steps[0]))
    return server.w


def test_the_first_moment_of_the_run_is_shorter_from_the_second_round_on() -> None:
    """m begins at zero in each round: with the correction of the run its first step is 1 - beta1 times as long."""
    p = Problem(Tanh(), K=1, wd=0.0, cohorts=((0,), (0,)), decay=1.0)
    moves = []
    for first in ("round", "run"):
        method = FedAdamW(alpha=0.0, beta1=0.9, first_moment=first)
        whole, one = p.simulate(method), replace(p, cohorts=((0,),)).simulate(method)
        moves.append(whole - one)
    ratio = (1 - 0.9) / (1 - 0.9**2)
    assert np.abs(moves[1] - ratio * moves[0]).max() <= 1e-12


@pytest.mark.parametrize("changes", [{"second_moment": "tensor"}, {"first_moment": "run"}, {"alpha": 0.0}])
def test_options_differ(changes: dict) -> None:
    p = Problem(Tanh())
    assert np.abs(p.simulate(FedAdamW(**changes)) - p.simulate(FedAdamW())).max() > 1e-3


def test_cost() -> None:
    cost = vector_cost(FedAdamW())
    assert (cost.down, cost.up, cost.client, cost.server, gradients_per_step(FedAdamW())) == (3, 2, 0, 3, 1)
    small = method_cost(FedAdamW(second_moment="tensor").on_model(((4, 5), (4,))), 24)
    assert (small.down, small.up) == (2 * 24 + 2 + 1, 24 + 2)


@pytest.mark.parametrize("name", ["beta1", "beta2"])
def test_a_moment_that_forgets_nothing_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"^FedAdamW\.{name} must be less than 1"):
        FedAdamW(**{name: 1.0})


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_single_precision_agrees_with_double(executor: str) -> None:
    """b near zero loses no digits: 1 - beta2 is computed before it is rounded."""
    p = Problem(Linear())
    data = ff.FederatedData.from_clients(p.data, classes=p.classes)
    finals = []
    for dtype in (torch.float32, torch.float64):
        sim = ff.Simulation(model=p.module, data=data, method=FedAdamW(), client=ff.Client(lr=0.05, steps=3),
                            participation=[list(one) for one in p.cohorts], executor=executor, dtype=dtype)  # fmt: skip
        finals.append(sim.run().w.double())
    torch.testing.assert_close(*finals, rtol=0, atol=2e-5)
