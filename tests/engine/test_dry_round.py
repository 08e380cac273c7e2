"""A dry round computes the round that follows, and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.oracle import unit
from fedflat.data.types import Index
from fedflat.methods import find
from support.effort import covering_methods, for_few_rounds, in_turns
from support.federation import federation, tanh_network


class Notes:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.steps: list[tuple[Index, int, Tensor, Tensor]] = []
        self.models: dict[int, Tensor] = {}

    def step(self, clients: Index, k: int, w: Tensor, perturbation: Tensor) -> None:
        self.steps.append((clients, k, w.clone(), perturbation.clone()))

    def done(self, clients: Index, w: Tensor) -> None:
        self.models |= dict(zip(clients.tolist(), w.clone(), strict=True))


def simulation(method: Method, executor: str = "stacked", **options) -> ff.Simulation:
    client = ff.Client(lr=0.1, epochs=2, batch_size=4)
    settings = {"rounds": 6, "participation": 0.5, "executor": executor, **options}
    return ff.Simulation(tanh_network(), federation(), method, client, **settings)


@pytest.mark.parametrize(("name", "executor"), in_turns(covering_methods(), ["sequential", "stacked"]))
def test_it_is_the_round_that_follows_and_leaves_no_trace(name: str, executor: str) -> None:
    """Every method, after some rounds: the same next model, the same records, the same counters."""
    watched, alone = (simulation(for_few_rounds(find(name)), executor) for _ in range(2))
    for _ in range(3):
        found = watched.dry_round(None, Notes())
        watched.round()
        assert torch.equal(watched.server.w, found.after)
    for _ in range(3):
        alone.round()
    assert torch.equal(watched.w, alone.w)
    assert [row | {"seconds": 0} for row in watched.history] == [row | {"seconds": 0} for row in alone.history]
    kept, same = watched._store.tensors(), alone._store.tensors()
    assert all(torch.equal(kept[name], same[name]) for name in same)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_local_models_average_to_the_next_one(executor: str) -> None:
    """FedAvg's server takes the mean of the local models."""
    sim, notes = simulation(ff.methods.FedAvg(), executor), Notes()
    found = sim.dry_round(None, notes)
    assert sorted(notes.models) == sorted(found.clients.tolist()) == sim.cohort(0).tolist()
    torch.testing.assert_close(torch.stack(list(notes.models.values())).mean(0), found.after)


def test_any_clients_can_be_asked() -> None:
    notes = Notes()
    found = simulation(ff.methods.FedSAM()).dry_round(np.arange(3), notes)
    assert found.clients.tolist() == [0, 1, 2]
    assert sorted(notes.models) == [0, 1, 2]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_the_perturbation_is_the_methods(executor: str) -> None:
    """FedSAM's has length rho and points along the batch's gradient at the iterate; FedAvg has none."""
    sim, notes = simulation(ff.methods.FedSAM(rho=0.3), executor), Notes()
    sim.dry_round(None, notes)
    lengths = torch.cat([perturbation.norm(dim=-1) for *_, perturbation in notes.steps])
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.3))
    clients, k, w, perturbation = notes.steps[0]
    work = sim.executor.batches.plan(0, clients)
    batch = sim.executor.batches.batch(work.samples[0, 0][work.samples[0, 0] >= 0], 0, clients[:1], 0)
    assert k == 0
    torch.testing.assert_close(perturbation[0], 0.3 * unit(sim.objective.gradient(w[0], batch)))
    still = Notes()
    simulation(ff.methods.FedAvg(), executor).dry_round(None, still)
    assert all(not perturbation.any() for *_, perturbation in still.steps)


def test_the_executors_show_the_same() -> None:
    shown = []
    for executor in ("sequential", "stacked"):
        sim, notes = simulation(ff.methods.FedSMOO(), executor, dtype=torch.float64), Notes()
        sim.round()
        sim.dry_round(None, notes)
        rows = {(int(c), k): (w, p) for clients, k, ws, ps in notes.steps
                for c, w, p in zip(clients, ws, ps, strict=False)}  # fmt: skip
        shown.append(rows)
    assert shown[0].keys() == shown[1].keys()
    for key, pair in shown[0].items():
        torch.testing.assert_close(pair, shown[1][key], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_probes_change_nothing() -> None:
    """Metrics of the rounds they follow have their numbers; everything else is bit-identical."""
    plain = simulation(ff.methods.FedSAM())
    probed = simulation(ff.methods.FedSAM(), probes=["sharpness", "eigenvalues"], probe_every=4)
    one, other = plain.run(), probed.run()
    assert torch.equal(one.w, other.w)
    for name in set(one.metrics.column_names) - {"seconds"}:
        assert one.metrics[name] == other.metrics[name]
    seen = other.metrics["sharpness"].to_pylist()
    assert [t for t, value in enumerate(seen) if value is not None] == [3, 5], "after rounds 4 and 6, the last"
    assert seen[-1] == ff.flatness(other.model, federation(), ["sharpness"])["sharpness"].value
    assert other.metrics["lambda_max_error"].to_pylist()[3] >= 0


def test_a_checkpoint_does_not_mind_probes(tmp_path) -> None:
    sim = simulation(ff.methods.FedSAM(), probes=["sharpness"], probe_every=2)
    sim.round()
    sim.save(tmp_path / "c.safetensors")
    other = simulation(ff.methods.FedSAM())
    other.load(tmp_path / "c.safetensors")
    assert torch.equal(other.run().w, sim.run().w)
