from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.method import Method
from fedflat.methods import FedLESAM, FedSAM, Scaffold
from fedflat.metrics.flatness import Measure, all_measures
from fedflat.metrics.flatness.measures.flatness_incompatibility import FlatnessIncompatibility
from support.effort import chosen, effort
from support.federation import simulation

FEW: dict[str, dict[str, Any]] = {
    "density": {"probes": 2, "steps": 3}, "eigenvalues": {"most": 5}, "lpf": {"draws": 2},
    "radius": {"points": 2, "directions": 2}, "trace": {"most": 20},
}  # fmt: skip
# All measures, but one that needs an adapter.
QUICK = [kind(**FEW.get(name, {})) for name, kind in all_measures().items() if name != "aggregation-error"]
QUICK.append(FlatnessIncompatibility(direction="method"))


def dropout_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 3)).double()


def state(sim: ff.Simulation) -> Iterator[torch.Tensor]:
    """Everything that the next round depends on, and the count of gradients."""
    yield from sim.server.tensors().values()
    yield from sim._store.tensors().values()
    yield torch.tensor([sim.t, *(row["gradients"] for row in sim.history)])


def assert_equal(one: ff.Simulation, other: ff.Simulation) -> None:
    for a, b in zip(state(one), state(other), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "executor"),
    chosen(
        [(FedLESAM, "sequential"), (Scaffold, "stacked")],
        [(FedSAM, "sequential"), (FedLESAM, "sequential"), (FedLESAM, "stacked"), (Scaffold, "stacked")],
    ),
)
def test_rounds_are_the_same_with_and_without(which: type[Method], executor: str) -> None:
    plain, watched = (simulation(which(), model=dropout_network(), executor=executor, rounds=2) for _ in "ab")
    for _ in range(effort(1, 2)):
        before = torch.random.get_rng_state()
        found = watched.flatness(QUICK)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert found == watched.flatness(QUICK)
        assert_equal(watched, plain)
        assert watched.objective.module.training
        plain.round()
        watched.round()
        assert_equal(watched, plain)


def test_every_method_can_be_measured(covering_method: Method) -> None:
    """After a round, finite numbers; only what looks at perturbations may have none."""
    sim = simulation(covering_method, rounds=2)
    sim.round()
    before = sim.w.clone()
    found = sim.flatness(QUICK)
    assert all(torch.isfinite(torch.tensor(x.value)) for x in found.values())
    names = {finding.measure for finding in found.findings if not finding.values}
    assert names <= {"PerturbationDrift", "FlatnessIncompatibility", "Radius"}
    assert torch.equal(sim.w, before)


@pytest.mark.parametrize("one", QUICK, ids=str)
def test_progress_rises_and_ends_where_it_said(one: Measure) -> None:
    reported: list[tuple[int, int]] = []
    simulation(FedSAM()).flatness([one], progress=lambda _, done, total: reported.append((done, total)))
    assert reported[-1][0] == reported[-1][1]
    assert all(done <= total for done, total in reported)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
