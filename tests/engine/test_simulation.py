from __future__ import annotations

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.methods import find
from fedflat.rounds.participation import HeldOut, Number, Unreliable
from support.effort import few_methods, for_few_rounds
from support.federation import federation, final_w, simulation, tanh_network

FedAvg, Scaffold, FedDyn = map(find, ("FedAvg", "Scaffold", "FedDyn"))


def test_rounds_report_what_happened() -> None:
    sim = simulation(FedAvg(), rounds=3)
    results = list(sim)
    assert [r.t for r in results] == [0, 1, 2]
    assert [r.metrics["lr"] for r in results] == pytest.approx([0.1, 0.095, 0.09025])
    assert all(0 <= r.metrics["test_accuracy"] <= 1 for r in results)
    assert results[-1].metrics["gradients"] > results[0].metrics["gradients"]
    assert list(sim) == [], "a finished simulation has no further round"


def test_reported_accuracy_and_drift_are_those_of_the_model() -> None:
    """Against plain PyTorch: accuracy of the final module; drift of one client in all is the length of its move."""
    data = federation(sizes=(9,))
    sim = simulation(FedAvg(), data=data, participation=1, rounds=1)
    before = sim.w.clone()
    metrics = sim.round().metrics
    x, y = data.test
    scores = sim.model(x).detach()
    assert metrics["test_accuracy"] == pytest.approx(float((scores.argmax(1) == y).double().mean()))
    assert metrics["test_loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, y)))
    assert metrics["drift"] == pytest.approx(float((sim.w - before).norm()))


def test_bytes_follow_from_the_records() -> None:
    sim = simulation(Scaffold(), rounds=4)
    for _ in sim:
        pass
    d = len(sim.w)
    assert sim.history[-1]["bytes_down"] == sim.history[-1]["bytes_up"] == 4 * 3 * 2 * d * 8


def test_evaluation_every_k_rounds_and_at_the_end() -> None:
    sim = simulation(FedAvg(), rounds=7, eval_every=3)
    assert [r.t for r in sim if "test_accuracy" in r.metrics] == [2, 5, 6]
    assert sim.run().metrics["test_accuracy"].null_count == 4


def test_without_a_test_set_there_is_no_test_accuracy() -> None:
    data = ff.FederatedData.from_clients([federation().client(i) for i in range(4)])
    run = simulation(FedAvg(), data=data).run()
    assert "test_accuracy" not in run.summary
    assert run.summary["train_loss"] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_the_models_or_the_given_one(dtype: torch.dtype) -> None:
    assert simulation(FedAvg(), model=tanh_network().to(dtype)).w.dtype == dtype
    assert simulation(FedAvg(), dtype=dtype).w.dtype == dtype


@pytest.mark.slow
def test_same_seed_same_run_other_seed_other_run() -> None:
    data = federation()
    runs = [simulation(FedAvg(), model="mlp", data=data, seed=seed).run().w for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_methods_share_initial_model_cohorts_and_batches() -> None:
    """So that comparisons are paired: everything but the method is a function of the seed alone."""
    one, other = (simulation(m(), model="mlp", seed=5) for m in (FedAvg, Scaffold))
    assert torch.equal(one.w, other.w)
    other.round()
    for t in range(4):
        assert np.array_equal(one.cohort(t), other.cohort(t))
        plans = [sim.executor.batches.plan(t, sim.cohort(t)).samples for sim in (one, other)]
        assert torch.equal(*plans)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "sample"}, "weights must be 'uniform' or 'samples', got 'sample'"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": 2.5}, "rounds must be a whole number of at least 1, got 2.5"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"eval_every": 0}, "eval_every must be a whole number of at least 1, got 0"),
        ({"participation": 7}, r"participation = 7 clients per round is not in 1\.\.6"),
        ({"participation": 0.0}, r"participation = 0\.0 is not a share in \(0, 1\]"),
        ({"participation": [[0], [6]], "rounds": 2}, r"round 1 names a client outside 0\.\.5"),
        ({"participation": [[0, 0]], "rounds": 1}, "round 0 is empty or names a client twice"),
        ({"participation": [[0]], "rounds": 2}, "participation lists 1 rounds, but rounds = 2"),
        ({"participation": "all"}, "participation must be a share"),
        ({"participation": [[0.5, 1]], "rounds": 1}, "participation must be a share"),
        ({"data": ([], [])}, "data must be FederatedData, got"),
        ({"dtype": "float64"}, "dtype must be a floating-point torch.dtype, got 'float64'"),
        ({"model": tanh_network(), "model_options": {"hidden": [3]}}, "model_options go with the name of a model"),
        ({"model": "mlp", "model_options": {"classes": 4}}, "model option 'classes' follows from the data"),
        ({"model": torch.nn.Linear(6, 2)}, r"model: gives scores of shape \(2, 2\) for 2 samples of 3 classes"),
        ({"model": torch.nn.LazyLinear(3)}, "model LazyLinear has lazy layers; pass one batch through it first"),
        ({"device": "meta"}, "device = 'meta' cannot be used"),
        ({"model": "resnet"}, "model = 'resnet' is unknown; known are causal-transformer, cnn, "),
        ({"model": "lenet"}, r"model 'lenet' takes images \(channels, 32, 32\), got shape \(6,\)"),
        (
            {"model": "mlp", "model_options": {"width": 3}},
            "model 'mlp' has no option 'width' \\(model.options.width\\); it has hidden",
        ),
        ({"device": "tpu9"}, "device = 'tpu9' cannot be used"),
    ],
)
def test_mistakes_name_the_argument(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulation(FedAvg(), **changes)


def test_a_class_or_a_string_is_no_method() -> None:
    with pytest.raises(ValueError, match=r"method must be a method such as fedflat\.methods\.FedAvg\(\), got"):
        simulation(FedAvg)
    with pytest.raises(ValueError, match=r"client must be Client\(\.\.\.\), got \{'lr': 1\}"):
        ff.Simulation(model="mlp", data=federation(), method=FedAvg(), client={"lr": 1})


@pytest.mark.parametrize("method", [Scaffold(), FedDyn(), find("FedSMOO")()])
def test_methods_that_need_equal_weights_say_so(method) -> None:
    with pytest.raises(ValueError, match=f"weights = 'samples' does not fit {type(method).__name__}"):
        simulation(method, weights="samples")


def test_explicit_cohorts_set_the_number_of_rounds() -> None:
    sim = simulation(FedAvg(), participation=[[0, 1], [2]], rounds=None)
    assert sim.rounds == 2
    assert [list(sim.cohort(t)) for t in range(2)] == [[0, 1], [2]]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_divergence_names_round_and_client_and_leaves_the_server(executor: str) -> None:
    data = federation()
    data.x[data.offsets[3]] = 1e200  # one sample of client 3 overflows the squared norm of nothing but itself
    sim = simulation(FedAvg(), data=data, participation=1.0, client={"lr": 1e200}, executor=executor)
    before = sim.w.clone()
    with pytest.raises(ff.NonFiniteError, match=r"client 3 sent NaN or infinity in round 0"):
        sim.round()
    assert torch.equal(sim.w, before)
    assert sim.t == 0


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_round_that_does_not_end_changes_nothing(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in its last client, the round can be run again as if nothing had been."""
    expected = simulation(Scaffold(), executor=executor).run()
    sim = simulation(Scaffold(), executor=executor)
    sim.round()
    run, calls = sim.executor.run, []

    def interrupted(work, *rest):
        calls.append(work)
        result = run(work, *rest)
        if len(calls) == (3 if executor == "sequential" else 1):
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(sim.executor, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sim.round()
    monkeypatch.undo()
    got = sim.run()
    assert torch.equal(got.w, expected.w)
    assert got.summary["gradients"] == expected.summary["gradients"]


def test_train_loss_is_over_what_clients_hold() -> None:
    """Samples that nobody holds do not count, samples held twice count twice."""
    data = federation()
    some = ff.FederatedData(data.x, data.y, np.array([0, 1, 1, 7]), np.array([0, 2, 4]), classes=3, test=data.test)
    run = simulation(FedAvg(), data=some, participation=2).run()
    scores = run.model(data.x[[0, 1, 1, 7]]).detach()
    assert run.summary["train_loss"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(scores, data.y[[0, 1, 1, 7]]))
    )


def test_samples_weights_are_the_clients_shares() -> None:
    """Two clients, one step each: the mean move is weighted 3 to 1."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)) for n in (9, 3)]
    settings = {"data": ff.FederatedData.from_clients(clients, classes=3), "rounds": 1, "participation": 1.0}

    def moved(**changes) -> torch.Tensor:
        sim = simulation(FedAvg(), client={"batch_size": None, "epochs": 1}, **(settings | changes))
        start = sim.w.clone()
        sim.round()
        return sim.w - start

    alone = [moved(participation=[[i]]) for i in range(2)]
    torch.testing.assert_close(moved(weights="samples"), 0.75 * alone[0] + 0.25 * alone[1], rtol=0, atol=1e-14)
    torch.testing.assert_close(moved(weights="uniform"), 0.5 * alone[0] + 0.5 * alone[1], rtol=0, atol=1e-14)


def test_a_run_has_everything() -> None:
    run = simulation(FedAvg(), rounds=12).run(flatness=["eigenvalues", "sharpness"])
    accuracies = run.metrics["test_accuracy"].to_pylist()
    assert run.summary["test_accuracy"] == pytest.approx(np.mean(accuracies[-10:]))
    assert run.summary["test_accuracy_last"] == accuracies[-1]
    assert run.flatness["lambda_max"].value > 0
    assert run.summary["client_accuracy_worst"] <= run.summary["client_accuracy_mean"]
    assert run.counts.sum() == len(federation().y)
    assert run.cost.down == len(run.w)


def test_stragglers_take_fewer_steps_and_only_they_differ() -> None:
    """FedAvg with one client a round: a round whose client is not slow has the bits of the round without stragglers."""
    rules = (1, Unreliable(Number(1), stragglers=0.5))
    plain, slow = (simulation(find("FedAvg")(), participation=rule, client={"epochs": 3}) for rule in rules)
    batches = slow.executor.batches
    for t in range(plain.rounds):
        cohort, same = plain.cohort(t), torch.equal(plain.w, slow.w)
        full, taken = plain.executor.batches.steps(t, cohort)[0], batches.steps(t, cohort)[0]
        before = plain.history[-1]["gradients"] if t else 0, slow.history[-1]["gradients"] if t else 0
        assert (plain.round().metrics["gradients"] - before[0], slow.round().metrics["gradients"] - before[1]) == (
            full, taken,
        )  # fmt: skip
        assert torch.equal(plain.w, slow.w) == (same and full == taken)
    assert slow.history[-1]["gradients"] < plain.history[-1]["gradients"]


@pytest.mark.slow
@pytest.mark.parametrize("name", few_methods())
def test_unreliable_clients_are_the_same_in_every_executor(name: str) -> None:
    rule = HeldOut(Unreliable(Number(3), dropouts=0.3, stragglers=0.5), 0.2)
    models = [
        final_w(for_few_rounds(find(name)), participation=rule, executor=executor)
        for executor in ("sequential", "stacked")
    ]
    torch.testing.assert_close(*models, rtol=1e-12, atol=1e-12)


def test_held_out_clients_are_evaluated_on() -> None:
    """Their accuracy is that of the model on their samples; the share of clients is among those that may take part."""
    rule = HeldOut(Number(2), 1 / 3)
    sim = simulation(find("Scaffold")(), participation=rule)
    metrics = [result.metrics for result in sim]
    held_out = rule.held_out(6)
    assert not set(held_out) & {client for t in range(7) for client in sim.cohort(t).tolist()}
    model = sim.model.eval()
    own = [(model(x.double()).argmax(-1) == y).double().mean().item() for x, y in map(sim.data.client, held_out)]
    assert metrics[-1]["held_out_accuracy"] == pytest.approx(sum(own) / len(own))
    assert sim._server.context(2).share == 0.5


def test_what_is_no_model_is_shown_on_one_line() -> None:
    with pytest.raises(InputError, match=r"or a torch\.nn\.Module, got OrderedDict") as error:
        simulation(find("FedAvg")(), model=torch.nn.Linear(6, 3).state_dict())
    assert len(str(error.value).splitlines()) == 1
