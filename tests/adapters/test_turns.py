"""Training A and B by turns: exact means, rounds on a subspace, and the same bits wherever it is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.adapters.adapted import is_factor
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.wrapper import Wrapper
from fedflat.methods import find
from fedflat.metrics.flatness.subject import RoundObserver
from support.effort import chosen, covering_methods, for_few_rounds, in_turns
from support.federation import federation

HARD = {"weight_decay": 0.05, "max_norm": 1.0, "momentum": 0.5}


# The others are refused, see the last test.
TAKING_TURNS = {
    name: cls for name, cls in covering_methods().items() if not issubclass(cls, Wrapper) and cls.training != "local"
}


@pytest.fixture(params=TAKING_TURNS.values(), ids=TAKING_TURNS)
def taking_turns(request: pytest.FixtureRequest) -> Method:
    return for_few_rounds(request.param)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def simulation(method: Method, mode: str, client: dict[str, Any] | None = None, **changes: Any) -> ff.Simulation:
    client = {"lr": 0.1, "epochs": 3, "batch_size": 4} | (client or {})
    adapter = ff.LoRA(targets=("0",), r=2, mode=mode)
    settings = {"model": network(), "data": federation(), "rounds": 5, "participation": 3, "adapter": adapter}
    return ff.Simulation(method=method, client=ff.Client(**client), **settings | changes)


def places(sim: ff.Simulation, factor: str) -> slice:
    return next(where for name, where in sim.objective.space.layers() if is_factor(name, factor))


class Models(RoundObserver):
    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def done(self, clients: np.ndarray, w: Tensor) -> None:
        self.found += list(w.clone())


def aggregation_error(sim: ff.Simulation) -> float:
    """||mean(B_i A_i) - mean(B_i) mean(A_i)|| / ||mean(B_i A_i)|| of the clients' models in the next round."""
    models = Models()
    sim.dry_round(None, models)
    factors = {"A": [], "B": []}
    for w in models.found:
        views = sim.objective.space.views(w)
        for factor, kept in factors.items():
            kept.append(views.get(next((n for n in views if is_factor(n, factor)), ""), None))
    if factors["A"][0] is None:  # fixed: not among the trained ones
        fixed = next(p for n, p in sim.objective.module.named_parameters() if is_factor(n, "A"))
        factors["A"] = [fixed.detach()] * len(models.found)
    A, B = (torch.stack(factors[factor]) for factor in "AB")
    product = (B @ A).mean(0)
    return float((product - B.mean(0) @ A.mean(0)).norm() / product.norm())


@pytest.mark.parametrize("name", ["FedAvg", "FedSAM", "FedSMOO", "FedCM"])
def test_the_mean_of_products_is_the_product_of_means_if_one_factor_is_common(name: str) -> None:
    for mode, exact in (("freeze_a", True), ("alternate", True), ("both", False)):
        sim = simulation(find(name)(), mode)
        for _ in range(3):
            sim.round()
            assert (aggregation_error(sim) < 1e-14) == exact
            assert exact or aggregation_error(sim) > 1e-6


def test_one_factor_moves_in_a_round_and_the_head_in_all(taking_turns: Method) -> None:
    """Under weight decay, clipping, momentum, and whatever a method adds to a gradient."""
    sim = simulation(taking_turns, "alternate", HARD, executor="stacked")
    before = sim.server.w.clone()
    for t in range(4):
        sim.round()
        moved = {name: bool((sim.server.w[at] != before[at]).any()) for name, at in sim.objective.space.layers()}
        for name, any_moved in moved.items():
            turn = (t % 2 == 0) if is_factor(name, "B") else (t % 2 == 1) if is_factor(name, "A") else True
            assert any_moved == turn, (t, name)
        before = sim.server.w.clone()


def test_the_first_round_is_that_of_a_fixed_a(taking_turns: Method) -> None:
    """An even round is exactly one of the same method on B and the head: also in norms, clipping and decay."""
    turns, fixed = (simulation(taking_turns, mode, HARD) for mode in ("alternate", "freeze_a"))
    turns.round()
    fixed.round()
    A = places(turns, "A")
    rest = torch.cat([turns.server.w[: A.start], turns.server.w[A.stop :]])
    torch.testing.assert_close(rest, fixed.server.w, rtol=1e-12, atol=1e-14)
    assert turns.history[0]["drift"] == pytest.approx(fixed.history[0]["drift"], rel=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "FedAvg",
        "FedSAM",
        "FedASAM",
        "FedProx",
        "SCAFFOLD",
        "FedCM",
        "FedDyn",
        "FedSpeed",
        "FedACG",
        "FedAvgM",
        "FedVSSAM",
    ],
)
def test_the_second_round_is_a_first_round_on_a_alone(name: str) -> None:
    """What the first round left for B (variates, momenta) is neither seen nor changed in the round of A.

    Clients have all their samples in a batch, and no head, so the first round of a run of its own on A is the same.
    """
    method, client = find(name)(), {"steps": 3, "epochs": None, "batch_size": None}
    adapter = ff.LoRA(targets=("0",), r=2, mode="alternate", head="frozen")
    cohorts = [[0, 1, 2], [0, 1, 2]]
    sim = simulation(method, "alternate", client, adapter=adapter, participation=cohorts, rounds=2)
    sim.round()
    alone = sim.model
    for parameter, p in alone.named_parameters():
        p.requires_grad_(is_factor(parameter, "A"))
    sim.round()
    other = simulation(method, "both", client, model=alone, adapter=None, participation=cohorts, rounds=2)
    start = other.w.clone()
    other.round()
    torch.testing.assert_close(sim.server.w[places(sim, "A")], other.server.w, rtol=1e-11, atol=1e-13)
    assert (other.server.w - start).norm() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), in_turns(TAKING_TURNS, ["both", "freeze_a", "alternate"]))
def test_stacked_is_sequential_and_resumed(name: str, mode: str, tmp_path) -> None:
    runs, method = {}, for_few_rounds(TAKING_TURNS[name])
    for executor in ("sequential", "stacked"):
        sim = simulation(method, mode, HARD, executor=executor)
        runs[executor] = torch.stack([sim.w.clone() for _ in sim])
    one, many = runs.values()
    assert (one - many).norm() <= 1e-12 * one.norm()
    assert (one[-1] - one[0]).norm() > 1e-3
    first, resumed = (simulation(method, mode, HARD, executor="stacked") for _ in range(2))
    for _ in range(3):
        first.round()
    first.save(tmp_path / "state.safetensors")
    resumed.load(tmp_path / "state.safetensors")
    assert torch.equal(torch.stack([resumed.w.clone() for _ in resumed]), many[3:])


@pytest.mark.parametrize("name", ["Local", "SWA"])
def test_methods_without_turns_are_refused_in_one_line(name: str) -> None:
    line = rf"^adapter.mode = 'alternate' does not go with {name}.*; use both or freeze_a$"
    with pytest.raises(InputError, match=line):
        simulation(find(name)(), "alternate")


@pytest.mark.slow
@pytest.mark.usefixtures(*chosen(["traced"], []))
@pytest.mark.parametrize("mode", chosen(["alternate"], ["both", "alternate"]))
def test_a_compiled_step_is_a_stacked_one(mode: str, recwarn: pytest.WarningsRecorder) -> None:
    runs = {}
    for executor in ("stacked", "compiled"):
        sim = simulation(find("FedSAM")(), mode, executor=executor, rounds=2)
        runs[executor] = torch.stack([sim.w.clone() for _ in sim])
    assert (runs["stacked"] - runs["compiled"]).norm() <= 1e-12 * runs["stacked"].norm()
    assert not [one for one in recwarn if "not compiled" in str(one.message)]
