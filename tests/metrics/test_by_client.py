"""Test samples of each client: who has which, and what the server's and the clients' own models make of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.metrics.accuracy import spread
from fedflat.metrics.by_client import ClientScores
from support.files import refused

CLIENTS, CLASSES = 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4)).astype(np.float32) + 2 * np.eye(4, dtype=np.float32)[np.arange(200) % CLASSES]
Y = np.arange(200) % CLASSES
ENDS = [0, 30, 60, 80, 110, 120, 130, 140, 150, 180, 200]
PIECES = [(X[a:b], Y[a:b]) for a, b in pairwise(ENDS)]
TRAIN, TESTS = PIECES[:CLIENTS], PIECES[CLIENTS:]


def data(**options) -> ff.FederatedData:
    return ff.FederatedData.from_clients(TRAIN, own_tests=TESTS, **options)


def simulation(some: ff.FederatedData | None = None, method=None, **options) -> ff.Simulation:
    how = {"rounds": 2, "participation": 1.0, "seed": 0, "metrics": ["recall"], **options}
    return ff.Simulation("mlp", some or data(), method or ff.methods.FedSAM(), **how)


def shares(model: torch.nn.Module) -> list[float]:
    """Return the accuracy of a model on the test samples of each client, by a plain loop."""
    with torch.inference_mode():
        return [float((model(torch.from_numpy(x)).argmax(1).numpy() == y).mean()) for x, y in TESTS]


def test_the_test_sets_of_clients_are_together_the_test_set() -> None:
    some = data()
    assert torch.equal(some.test[0], torch.from_numpy(np.concatenate([x for x, _ in TESTS])))
    assert some.own_test.sizes.tolist() == [len(y) for _, y in TESTS]


def test_each_client_is_scored_by_the_servers_model_on_its_own_samples() -> None:
    run = simulation().run()
    expected = shares(run.model)
    assert run.clients.accuracy == pytest.approx(expected)
    assert run.summary["client_test_accuracy_mean"] == pytest.approx(np.mean(expected))
    assert run.summary["client_test_accuracy_worst"] == pytest.approx(min(expected))
    assert run.metrics["client_test_accuracy"].to_pylist()[-1] == pytest.approx(np.mean(expected))
    assert run.clients.worst_tenth() == [str(int(np.argmin(expected)))]


def test_recall_is_by_class_and_client() -> None:
    run = simulation().run()
    with torch.inference_mode():
        for i, (x, y) in enumerate(TESTS):
            hits = run.model(torch.from_numpy(x)).argmax(1).numpy() == y
            for c in range(CLASSES):
                assert run.clients.recall[str(c)][i] == pytest.approx(hits[y == c].mean())


def test_a_class_that_a_client_has_no_test_sample_of_has_no_recall() -> None:
    own = [(x[y < 2], y[y < 2]) if i == 1 else (x, y) for i, (x, y) in enumerate(TESTS)]
    some = ff.FederatedData.from_clients(TRAIN, own_tests=own)
    assert [value is None for value in simulation(some).run().clients.recall["2"]] == [i == 1 for i in range(CLIENTS)]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_own_models_are_scored_on_their_clients_samples(executor: str) -> None:
    """A layer stays with each client, so that every client has a model of its own beside the server's."""
    sim = simulation(keep=["3.*"], executor=executor)
    run = sim.run()
    own = [shares(sim.client_model(i))[i] for i in range(CLIENTS)]
    assert run.clients.personal_accuracy == pytest.approx(own)
    assert run.clients.accuracy == pytest.approx(shares(run.model))
    assert run.summary["personal_test_accuracy_mean"] == pytest.approx(np.mean(own))
    assert run.metrics["personal_test_accuracy"].to_pylist()[-1] == pytest.approx(np.mean(own))


def test_clients_that_train_alone_have_only_models_of_their_own() -> None:
    run = simulation(method=ff.methods.Local()).run()
    assert run.clients.accuracy == []
    assert run.summary["personal_test_accuracy_mean"] == pytest.approx(np.mean(run.clients.personal_accuracy))
    assert "client_test_accuracy_mean" not in run.summary


def test_a_private_run_says_nothing_of_single_clients() -> None:
    how = {"rounds": 2, "metrics": ["recall"], "client": ff.Client(steps=2, batch_size=5)}
    run = ff.Simulation(
        "mlp", data(), ff.methods.FedAvg(), **how, privacy=ff.Privacy(epsilon=8, delta=1e-3, clip=1, rate=0.5)
    ).run()
    assert run.clients is None
    assert not any(name.startswith("client_test") for name in (*run.summary, *run.metrics.column_names))


def test_a_common_test_set_belongs_to_no_client() -> None:
    user = np.array(["b", "c", "a", "d"])[np.arange(150) % 4]
    natural = {"user": user, "partition": ff.Natural(), "clients": 4}
    assert ff.FederatedData.split(X[:150], Y[:150], test=(X[150:], Y[150:]), **natural).own_test is None


@pytest.mark.parametrize("clients", [2, 4])
def test_users_in_files_keep_their_test_samples(tmp_path, clients: int) -> None:
    users, tested = np.arange(150) % 4 + 10, np.array([10, 12, 13])[np.arange(50) % 3]
    np.savez(tmp_path / "train.npz", x=X[:150], y=Y[:150], user=users)
    np.savez(tmp_path / "test.npz", x=X[150:], y=Y[150:], user=tested)
    some = ff.data.load("npz", clients, ff.Natural(), data_dir=str(tmp_path), seed=3)
    for i, name in enumerate(some.client_names):
        own = some.own_test.parts()[i]
        assert torch.equal(some.client(i)[0], torch.from_numpy(X[:150][users == int(name)]))
        assert torch.equal(some.test[0][own], torch.from_numpy(X[150:][tested == int(name)]))
    if clients == 4:
        assert some.client_names == ("10", "11", "12", "13")
        assert simulation(some).run().clients.client == [0, 2, 3]  # user 11 has no test samples
    assert ff.data.load("npz", clients, data_dir=str(tmp_path)).own_test is None


def test_the_worst_tenth_is_rounded_up() -> None:
    assert spread(np.array([0.5, 0.25, 1.0]))["worst_tenth"] == 0.25
    assert spread(np.linspace(0, 1, 21))["worst_tenth"] == pytest.approx(0.05)
    assert ClientScores([7, 8, 9], ["x", "y", "z"], [1, 1, 1], [0.5, 0.25, 1.0]).worst_tenth() == ["y"]
    assert ClientScores([7, 8], [], [1, 1], [0.0, 1.0], [1.0, 0.5]).worst_tenth() == ["8"]


def test_test_sets_that_do_not_fit_the_clients_are_one_line() -> None:
    with refused("own_tests has 4 test sets for 5 clients"):
        ff.FederatedData.from_clients(TRAIN, own_tests=TESTS[:4])
    with refused("in place of test"):
        ff.FederatedData.from_clients(TRAIN, own_tests=TESTS, test=TESTS[0])
    with refused("test of client 1 has samples of shape (3,), test of client 0 of shape (4,)"):
        ff.FederatedData.from_clients(TRAIN, own_tests=[TESTS[0], (TESTS[1][0][:, :3], TESTS[1][1]), *TESTS[2:]])
    with refused("labels of different kinds"):
        ff.FederatedData.from_clients(TRAIN, own_tests=[TESTS[0], *((x, y.astype(str)) for x, y in TESTS[1:])])


def test_a_stored_run_has_the_scores_of_clients(tmp_path) -> None:
    run = simulation().run()
    run.save(tmp_path / "run")
    assert ff.load_run(tmp_path / "run").clients == run.clients
    text = (tmp_path / "run" / "summary.json").read_text()
    assert '"clients"' in text
