"""What a run is expected to cost is what it then costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedflat.core.method import Method
from fedflat.experiments.budget import Budget, budget_of_runs, run_budget, simulation_budget
from fedflat.rounds import checkpoint
from support.effort import FEW_ROUNDS, chosen, effort
from support.memory import counted
from support.studies import run_spec, study_spec

MEMORY = """
import torch, fedflat as ff
from fedflat.experiments.budget import peak_bytes
from fedflat.core.native_libraries import tune_allocator
tune_allocator()
torch.set_num_threads(1)

name, model, clients, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shape = (3, 32, 32) if model == "lenet" else (64,)
g = torch.Generator().manual_seed(0)
x, y = torch.randn(400, *shape, generator=g), torch.randint(10, (400,), generator=g)
some = [(x[i % 7 * 40 : i % 7 * 40 + 40], y[i % 7 * 40 : i % 7 * 40 + 40]) for i in range(clients)]
data = ff.FederatedData.from_clients(some, test=(x, y), classes=10)
sim = ff.Simulation(model, data, ff.methods.find(name)(), ff.Client(epochs=1, batch_size=20), rounds=rounds,
                    participation=10, workers=1)
Path("/proc/self/clear_refs").write_text("5")
expected = peak_bytes(sim)
Path("/proc/self/clear_refs").write_text("5")
for _ in sim:
    pass
print(expected, in_bytes("VmHWM"))
"""


@pytest.mark.slow
def test_a_simulation_spends_its_budget(covering_method: Method, tmp_path: Path) -> None:
    name = type(covering_method).__name__
    table = {"name": name, **FEW_ROUNDS.get(name, {})}
    spec = run_spec(method=table, participation={"bernoulli": 0.4}, rounds=4)
    expected = simulation_budget(spec.build())
    sim = spec.build()
    for _ in sim:
        pass
    spent = sim.history[-1]
    assert spent["gradients"] == expected.gradients
    assert (spent["bytes_down"], spent["bytes_up"]) == (expected.bytes_down, expected.bytes_up)
    sim.save(tmp_path / "round-000004.safetensors")
    saved, _ = checkpoint.load(tmp_path / "round-000004.safetensors")
    kept = {name: x.nbytes for name, x in saved.items() if name.startswith("clients.") and name != "clients.slots"}
    assert sum(kept.values()) <= expected.client_state_bytes


def test_a_run_has_the_budget_that_its_description_says() -> None:
    """1,347 digits on 10 clients are 3 batches of 50 for each; an MLP of 64, 64 and 10 units has 4,810 parameters."""
    spec = run_spec(partition="iid", rounds=6, participation=0.5, eval_every=4)
    budget = run_budget(spec)
    assert (budget.parameters, budget.clients_per_round) == (64 * 64 + 64 + 64 * 10 + 10, 5)
    assert budget.gradients == 6 * 5 * 3
    assert budget.bytes_down == budget.bytes_up == 6 * 5 * 4 * budget.parameters
    assert budget.evaluated_samples == 2 * 450 + 1347
    assert budget == replace(simulation_budget(spec.build()), peak_bytes=None)


def test_a_study_has_the_budget_of_its_runs() -> None:
    """FedSAM takes two gradients where FedAvg takes one, and sends as much."""
    study = study_spec(methods=["fedavg", "fedsam"], seeds=[0, 1], partition="iid")
    one = run_budget(study.runs()[0])
    assert budget_of_runs(study.runs()) == Budget(
        4, 2 * (1 + 2) * one.gradients, 4 * one.evaluated_samples, 4 * (one.bytes_down + one.bytes_up)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "clients"),
    chosen(
        [("FedSAM", "lenet", 20), ("FedSMOO", "mlp", 300)],  # a model that needs more than its clients, and the reverse
        [("FedSAM", "lenet", 20), ("Scaffold", "lenet", 20), ("FedSMOO", "mlp", 300)],
    ),
)
def test_memory_is_within_its_budget_and_not_far_below(name: str, model: str, clients: int) -> None:
    expected, taken = counted(MEMORY, name, model, clients, effort(2, 3))
    assert taken <= expected + 20 * 2**20
    assert expected <= 1.5 * taken


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "mlp", "options": {"hidden": [4]}, "keep": ["3"]}},
        {
            "model": {
                "name": "mlp",
                "options": {"hidden": [4], "batch_norm": True},
                "buffers": "averaged",
                "keep": ["1"],
            }
        },
        {"client": {"optimizer": "adamw", "optimizer_state": "kept", "batch_size": 4, "accumulate": 2}},
    ],
)
def test_parts_that_stay_are_not_sent_and_kept_states_are_kept(changes: dict) -> None:
    """The cost of a run's settings is that of its simulation."""
    spec = run_spec(rounds=2, participation=1.0, **changes)
    sim = spec.build()
    estimated, exact = run_budget(spec), simulation_budget(sim)
    for name in ("parameters", "bytes_down", "bytes_up", "client_state_bytes"):
        assert getattr(estimated, name) == getattr(exact, name), name
    list(sim)
    assert sim.history[-1]["bytes_up"] == exact.bytes_up
