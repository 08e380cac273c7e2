from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Context
from fedflat.core.method_contract import ContractOracle, context
from fedflat.methods import find
from fedflat.rounds.cost import gradients_per_step, method_cost, vector_cost
from support.federation import simulation
from support.problem import Array, Problem, Tanh, assert_agrees, unit

FedFSA = find("FedFSA")


def tensors(p: Problem, w: Array) -> list[tuple[int, Array]]:
    """The number of dimensions and the values of each parameter tensor."""
    parameters = list(p.module.parameters())
    ends = np.cumsum([x.numel() for x in parameters])[:-1]
    return [(x.ndim, values) for x, values in zip(parameters, np.split(w, ends), strict=True)]


def scaled(x: Array) -> Array:
    return (x - x.min()) / (x.max() - x.min())


def most_changed(p: Problem, before: Array, after: Array, top_c: int) -> set[int]:
    pairs = enumerate(zip(tensors(p, before), tensors(p, after), strict=True))
    s = {place: np.mean((scaled(y) - scaled(x)) ** 2) for place, ((ndim, x), (_, y)) in pairs if ndim >= 2}
    return set(sorted(s, key=lambda place: (-s[place], place))[:top_c])


def transcription(
    p: Problem, rho: float, larger: float, top_c: int, alpha: float, seen: Callable[[set[int]], None] = lambda _: None
) -> Array:
    w, delta = p.w0, np.zeros_like(p.w0)
    chosen: list[set[int]] = [set()] * p.N
    for t, cohort in enumerate(p.cohorts):
        moves, parts = [], []
        for i in cohort:
            sizes = [len(x) for _, x in tensors(p, w)]
            r = np.repeat([larger if place in chosen[i] else rho for place in range(len(sizes))], sizes)
            v = w
            for _ in range(p.steps(i)):
                e = r * unit(p.grad(i, v))
                v = p.step(v, alpha * p.grad(i, v + e) + (1 - alpha) * delta, p.lr(t))
            chosen[i] = most_changed(p, w, v, top_c)
            seen(chosen[i])
            moves.append(v - w)
            parts.append((v - w) / (p.steps(i) * p.lr(t)))
        w, delta = w + p.mean(cohort, moves), -p.mean(cohort, parts)
    return w


@pytest.mark.parametrize("uneven", [False, True])
def test_transcription(uneven: bool) -> None:
    method = FedFSA(rho=0.1, rho_larger=0.9, top_c=1, alpha=0.4)
    assert_agrees(lambda p: transcription(p, 0.1, 0.9, 1, 0.4), method, ("uniform", "samples"), uneven)


def test_clients_of_the_transcription_choose_unlike_tensors() -> None:
    """Otherwise it would not show that they choose."""
    found: list[set[int]] = []
    transcription(Problem(Tanh()), 0.1, 0.9, 1, 0.4, found.append)
    assert {0} in found
    assert {2} in found


class Deep(nn.Sequential):
    """Four weight tensors, one of them a stack of matrices."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        layers: tuple[nn.Module, ...] = (nn.Linear(6, 8), nn.Tanh(), nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 3, 2))
        super().__init__(*layers, nn.Flatten(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))
        self.double()


def kept(sim: ff.Simulation) -> Tensor:
    """The records of all clients, (clients, tensors)."""
    down = sim.method.broadcast(sim.server).map(lambda x: x.expand(6, -1))
    return sim._store.get(np.arange(6), down).sensitive


def test_each_client_keeps_two_weight_tensors_and_clients_differ() -> None:
    sim = simulation(FedFSA(), model=Deep(), participation=1.0)
    sim.round()
    marks = kept(sim)
    assert marks.shape == (6, 8)
    assert set(marks.flatten().tolist()) == {0.0, 1.0}
    assert marks[:, ::2].sum(1).tolist() == [2] * 6
    assert marks[:, 1::2].sum() == 0, "biases"
    assert len({tuple(row.tolist()) for row in marks}) > 1


def finish(method: Any, shapes: tuple[tuple[int, ...], ...], before: list[Tensor], after: list[Tensor]) -> Tensor:
    """The record that a client keeps after a round that moved its tensors from `before` to `after`."""
    layers = tuple(slice(*ends) for ends in pairwise(accumulate((x.numel() for x in before), initial=0)))
    start, end = (torch.cat([x.flatten() for x in values]) for values in (before, after))
    method = method.on_model(shapes)
    server = method.init_server(start)
    down = method.broadcast(server)
    _, kept = method.finish(end, method.init_client(down), down, Context(0, 0.1, 1.0, layers=layers))
    return kept.sensitive


SHAPES = ((2, 3), (3,), (3, 2), (6,), (1, 6), (1, 2, 3))
START = [torch.arange(float(n)) ** 2 for n in (6, 3, 6, 6, 6, 6)]


def bent(x: Tensor, by: float) -> Tensor:
    """Another value in the middle: the sensitivity grows with the change."""
    y = x.clone()
    y[1] += by
    return y


def test_the_largest_changes_of_weight_tensors_are_chosen() -> None:
    after = [bent(x, by) for x, by in zip(START, (2.0, 9.0, 1.0, 9.0, 4.0, 3.0), strict=True)]
    for top_c, marks in ((1, [4]), (2, [4, 5]), (3, [0, 4, 5])):
        expected = torch.zeros(6)
        expected[marks] = 1
        assert torch.equal(finish(FedFSA(top_c=top_c), SHAPES, START, after), expected)


def test_of_equal_changes_the_first_count() -> None:
    after = [bent(x, 2.0) for x in START]
    assert finish(FedFSA(top_c=3), SHAPES, START, after).tolist() == [1, 0, 1, 0, 1, 0]
    assert finish(FedFSA(top_c=3), SHAPES, START, START).tolist() == [1, 0, 1, 0, 1, 0], "nothing moved"


def test_a_tensor_that_is_only_scaled_and_shifted_has_not_changed() -> None:
    """N(a x + c) = N(x) for a > 0. A power of two and an integer change no bit of x."""
    after = [bent(START[0], 0.01), START[1], 8 * START[2] + 3, START[3], *START[4:]]
    assert finish(FedFSA(top_c=1), SHAPES, START, after).tolist() == [1, 0, 0, 0, 0, 0]
    flipped = [bent(START[0], 0.01), START[1], -START[2], START[3], *START[4:]]
    assert finish(FedFSA(top_c=1), SHAPES, START, flipped).tolist() == [0, 0, 1, 0, 0, 0], "a < 0"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_constant_tensor_is_never_chosen(when: str) -> None:
    constant, moved = torch.full((6,), 2.0), [bent(x, 1.0) for x in START]
    before = [START[0], START[1], constant if when == "before" else START[2], *START[3:]]
    after = [moved[0], moved[1], constant if when == "after" else moved[2], *moved[3:]]
    assert finish(FedFSA(top_c=4), SHAPES, before, after).tolist() == [1, 0, 0, 0, 1, 1]


def test_the_perturbation_has_one_norm_and_two_radii() -> None:
    method = FedFSA(rho=0.2, rho_larger=0.7).on_model(((2, 4), (3,)))
    w, b = torch.linspace(-1, 1, 11, dtype=torch.float64), torch.linspace(1, 2, 11, dtype=torch.float64)
    oracle, asked = ContractOracle(b, 0), []

    def grad(x: Tensor) -> Tensor:
        asked.append(x)
        return oracle(x)

    down = method.broadcast(method.init_server(w))
    method.step(w, method.client(torch.tensor([1.0, 0.0], dtype=torch.float64)), down, grad, context())
    direction = oracle(w) / oracle(w).norm()
    expected = torch.cat([0.7 * direction[:8], 0.2 * direction[8:]])
    torch.testing.assert_close(asked[1] - asked[0], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("top_c", "settings", "found"),
    [
        (3, {}, 2),
        (2, {"keep": ["2"]}, 1),
        (2, {"keep": ["2.weight"]}, 1),
        (2, {"model": nn.Linear(6, 3).double()}, 1),
        (2, {"model": nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 1), nn.Linear(1, 3)).double()}, None),
        (3, {"model": nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 1), nn.Linear(1, 3)).double()}, 2),
    ],
)
def test_a_model_with_too_few_weight_tensors_is_refused(top_c: int, settings: dict, found: int | None) -> None:
    """A weight of one number is constant. Tensors that stay with the clients are not chosen."""
    if found is None:
        simulation(FedFSA(top_c=top_c), rounds=1, **settings).run()
        return
    with pytest.raises(InputError, match=rf"^FedFSA.top_c must be at most {found}, .* got {top_c}$"):
        simulation(FedFSA(top_c=top_c), **settings)


def test_of_an_adapter_the_factors_and_the_head_are_chosen_once_they_are_not_constant() -> None:
    """The second factor begins at zero. The trained tensors: two factors, and the weight and bias of the head."""
    sim = simulation(FedFSA(top_c=3), participation=1.0, adapter=ff.LoRA(r=2, targets=["0"]))
    sim.round()
    assert kept(sim).tolist() == [[1, 0, 1, 0]] * 6
    sim.round()
    assert kept(sim).tolist() == [[1, 1, 1, 0]] * 6


def test_cost() -> None:
    assert FedFSA().needs_equal_weights is False
    cost = vector_cost(FedFSA())
    assert (cost.down, cost.up, cost.client, cost.server) == (2, 1, 0, 2)
    assert gradients_per_step(FedFSA()) == 2
    assert gradients_per_step(FedFSA(rho=0.0, rho_larger=0.0)) == 1
    assert method_cost(FedFSA().on_model(SHAPES), 33).client == len(SHAPES)
