"""The baselines of a federation: each client alone, and all samples in one place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.method_contract import CONTRACT
from fedflat.data.federated import FederatedData
from fedflat.engine.trials import TRIALS
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import Study
from fedflat.methods import Centralised, FedAvg, Local
from fedflat.metrics.accuracy import score
from fedflat.rounds.participation import HeldOut, Unreliable
from support.studies import run_spec

SIZES = (9, 2, 14, 5, 7)
CLIENT = ff.Client(lr=0.1, lr_decay=0.9, epochs=2, batch_size=4, weight_decay=0.01, momentum=0.5)


def samples(seed: int = 5, sizes: tuple[int, ...] = SIZES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 6, dtype=torch.float64, generator=random) + i % 3,
             torch.randint(3, (n,), generator=random)) for i, n in enumerate(sizes)]  # fmt: skip


def data(**options) -> FederatedData:
    return FederatedData.from_clients(samples(), test=samples(seed=6, sizes=(30,))[0], classes=3, **options)


def simulation(method: ff.Method, data: FederatedData, rounds: int = 4, participation=3, **options) -> ff.Simulation:
    options = {"executor": "sequential", "workers": 1, "client": CLIENT, "model_options": {"hidden": [4]}} | options
    return ff.Simulation(
        "mlp", data, method, rounds=rounds, participation=participation, dtype=torch.float64, **options
    )


# Local ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_local_is_a_federation_of_one_for_every_client(executor: str) -> None:
    """Each client's model is what FedAvg makes of that client alone, if it takes part in every round."""
    whole = data()
    sim = simulation(Local(), whole, participation=1.0, executor=executor)
    run = sim.run()
    of_clients = []
    for client in range(whole.clients):
        alone = simulation(FedAvg(), whole, participation=[[client]] * 4)
        of_clients.append(alone.run().summary)
        torch.testing.assert_close(sim.own_model(client), alone.w, rtol=1e-12, atol=1e-14)
    for name in ("test_accuracy_last", "test_loss_last"):
        assert run.summary[name] == pytest.approx(np.mean([one[name] for one in of_clients]), rel=1e-10)
    assert run.summary["gradients"] == sum(one["gradients"] for one in of_clients)


def test_local_sends_nothing_and_leaves_the_servers_model() -> None:
    sim = simulation(Local(), data())
    before = sim.w.clone()
    run = sim.run(flatness=["sharpness"])
    assert run.summary["bytes_down"] == run.summary["bytes_up"] == 0
    assert (run.cost.down, run.cost.up, run.cost.client) == (0, 0, len(before))
    assert torch.equal(sim.w, before)
    assert not list(run.flatness), "there is no common model to measure"


def test_a_client_that_was_never_asked_has_the_initial_model() -> None:
    sim = simulation(Local(), data(), rounds=2, participation=[[0, 1], [1, 2]])
    initial = sim.w.clone()
    sim.run()
    assert [torch.equal(sim.own_model(client), initial) for client in range(5)] == [False] * 3 + [True] * 2


def test_local_clients_are_judged_on_their_own_samples() -> None:
    whole = data(validation=0.3)
    sim = simulation(Local(), whole, participation=1.0)
    summary = sim.run().summary
    parts = {"client": whole.members, "validation": whole.validation.members}
    offsets = {"client": whole.offsets, "validation": whole.validation.offsets}
    for name, members in parts.items():
        own = np.split(members, offsets[name][1:-1])
        accuracies = [
            score(sim.objective, sim.own_model(i), whole.x[part], whole.y[part]).accuracy for i, part in enumerate(own)
        ]
        assert summary[f"{name}_accuracy_mean"] == pytest.approx(np.mean(accuracies))
        assert summary[f"{name}_accuracy_worst"] == min(accuracies)


def test_local_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, first, resumed = (simulation(Local(), data()) for _ in range(3))
    whole.run()
    first.round()
    first.save(tmp_path / "state.safetensors")
    resumed.load(tmp_path / "state.safetensors")
    resumed.run()
    assert all(torch.equal(whole.own_model(i), resumed.own_model(i)) for i in range(5))
    untimed = [[{n: x for n, x in row.items() if n != "seconds"} for row in sim.history] for sim in (whole, resumed)]
    assert untimed[0] == untimed[1]


def test_local_clients_that_are_held_out_have_no_model() -> None:
    metrics = simulation(Local(), data(), participation=HeldOut(1.0, 0.4)).round().metrics
    assert "held_out_accuracy" not in metrics


def test_local_in_several_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="Local evaluates every client's own model"):
        simulation(Local(), data(), ranks=ff.engine.ranks.Ranks(2, 0, alone=False))


def test_clients_of_a_federation_have_no_own_models() -> None:
    with pytest.raises(ValueError, match="clients of FedAvg keep no models"):
        simulation(FedAvg(), data()).own_model(0)


# Both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Local(), Centralised()], ids=["Local", "Centralised"])
@pytest.mark.parametrize("promise", [*CONTRACT, *TRIALS])
def test_they_keep_the_promises_of_methods(promise: str, method: ff.Method) -> None:
    (CONTRACT | TRIALS)[promise](method)


@pytest.mark.parametrize("name", ["local", "centralised"])
def test_no_federation_carries_them_out(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"is {name} training, not that of a federation"):
        Study(run_spec(method=name), RunSettings(clients=run_spec().data.clients))


# Centralised ----------------------------------------------------------------------------------------------------------


def test_centralised_is_fedavg_of_one_client_that_has_everything() -> None:
    """With as many steps as the cohort would take; equal sizes, so that this number does not change."""
    parts = samples(sizes=(8, 8, 8, 8, 8))
    apart = FederatedData.from_clients(parts, classes=3)
    together = FederatedData.from_clients([tuple(torch.cat(one) for one in zip(*parts, strict=True))], classes=3)
    steps = 3 * 2 * 2  # clients, epochs, batches
    expected = simulation(FedAvg(), together, participation=1.0, client=CLIENT.__class__(
        lr=0.1, lr_decay=0.9, steps=steps, batch_size=4, weight_decay=0.01, momentum=0.5))  # fmt: skip
    found = simulation(Centralised(), apart)
    expected.run()
    assert found.run().summary["gradients"] == 4 * steps
    assert torch.equal(found.w, expected.w)


@pytest.mark.parametrize(
    "rule", [3, 1.0, ff.Bernoulli(0.5), Unreliable(3, dropouts=0.3, stragglers=0.8), HeldOut(0.5, 0.4)]
)
def test_centralised_takes_as_many_gradients_as_the_federation(rule: object) -> None:
    federated, centralised = (simulation(method, data(), 6, rule) for method in (FedAvg(), Centralised()))
    taken = [[row["gradients"] for row in sim.run().metrics.to_pylist()] for sim in (federated, centralised)]
    assert taken[0] == taken[1]


def test_centralised_uses_each_sample_of_the_pool_once_an_epoch_and_no_other() -> None:
    """Not those of validation, nor those of clients that are held out."""
    whole = data(validation=0.3)
    sim = simulation(Centralised(), whole, participation=HeldOut(1.0, 0.4))
    held_out = sim.participation.held_out(5)
    free = np.concatenate([part for i, part in enumerate(np.split(whole.members, whole.offsets[1:-1]))
                           if i not in held_out])  # fmt: skip
    plan = sim.executor.batches.plan(0, np.array([0]))
    one_epoch = plan.samples[0, : -(-len(free) // 4)].flatten()
    assert sorted(one_epoch[one_epoch >= 0].tolist()) == sorted(free.tolist())
    assert "held_out_accuracy" in sim.round().metrics


def test_centralised_sends_nothing_and_is_paired_with_the_federation() -> None:
    federated, centralised = (simulation(method, data()) for method in (FedAvg(), Centralised()))
    ours, theirs = federated.run(), centralised.run()
    assert theirs.summary["bytes_down"] == theirs.summary["bytes_up"] == 0
    for name in ("partition_hash", "participation", "data_hash", "model_hash"):
        assert ours.settings[name] == theirs.settings[name]
    assert len(ours.counts) == len(theirs.counts) == 5


def test_clients_of_centralised_training_are_refused() -> None:
    sim = simulation(Centralised(), data())
    with pytest.raises(ValueError, match="Centralised trains one model on all samples"):
        sim.dry_round(np.array([1]), ff.metrics.flatness.subject.RoundObserver())
