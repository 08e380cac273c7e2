"""Running statistics and parts that stay with clients, against loops of plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.objective import Batch, Objective
from fedflat.core.partial_model import Division
from fedflat.methods import FedAvg, FedGMT, FedProx, FedSAM, MimeLite, find
from support.effort import covering_methods, for_few_rounds, in_turns, skip_refused
from support.federation import federation, whole_and_resumed

SIZES = (12, 8, 16)
ROUNDS = 5
CLIENT = {"lr": 0.1, "epochs": 2}


def normalised(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=0.3), nn.Tanh(), nn.Linear(5, 3)).double()


def simulation(method: ff.Method, model: nn.Module | None = None, **changes) -> ff.Simulation:
    """Clients of a few samples, which take full batches in two epochs."""
    client = ff.Client(**CLIENT | changes.pop("client", {}))
    settings = {"data": federation(SIZES), "rounds": ROUNDS, "weights": "samples", "executor": "sequential",
                "workers": 1, "device": "cpu"} | changes  # fmt: skip
    return ff.Simulation(model or normalised(), method=method, client=client, **settings)


def trained(method: ff.Method, **changes) -> ff.Simulation:
    sim = simulation(method, **changes)
    for _ in sim:
        pass
    return sim


def numbers(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and statistics by name, without the counter of batches."""
    return {name: x for name, x in module.state_dict().items() if x.is_floating_point()}


def assert_same_numbers(found: nn.Module, expected: nn.Module) -> None:
    for name, x in numbers(found).items():
        torch.testing.assert_close(x, numbers(expected)[name], rtol=0, atol=1e-9, msg=name)


def plain_rounds(
    model: nn.Module, stays: Sequence[str] = (), weights: Sequence[int] = SIZES, frozen: bool = False
) -> list[nn.Module]:
    """Federated averaging by hand: the clients' own models, in which only names in `stays` differ."""
    data = federation(SIZES)
    own = [deepcopy(model) for _ in SIZES]
    for _ in range(ROUNDS):
        for i, local in enumerate(own):
            x, y = data.client(i)
            local.train()
            local[1].train(not frozen)
            optimiser = torch.optim.SGD(local.parameters(), CLIENT["lr"])
            for _ in range(CLIENT["epochs"]):
                optimiser.zero_grad()
                cross_entropy(local(x.double()), y).backward()
                optimiser.step()
        sent = {name: sum(n * numbers(local)[name] for n, local in zip(weights, own, strict=True)) / sum(weights)
                for name in numbers(model) if not any(fnmatchcase(name, one) for one in stays)}  # fmt: skip
        for local in own:
            local.load_state_dict(sent, strict=False)
    return [local.eval() for local in own]


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_averaged_statistics_are_those_of_a_plain_loop(weights: str) -> None:
    sim = trained(FedAvg(), buffers="averaged", weights=weights)
    expected = plain_rounds(normalised(), weights=SIZES if weights == "samples" else (1, 1, 1))
    assert_same_numbers(sim.model, expected[0])
    assert (numbers(sim.model)["1.running_var"] - 1).abs().min() > 1e-3, "they moved"


PARTS = {  # the settings, and the names that stay
    "FedPer": ({"buffers": "averaged", "keep": ["3"]}, ["3.*"]),
    "LG-FedAvg": ({"buffers": "averaged", "keep": ["0.*", "1.*"]}, ["0.*", "1.*"]),
    "FedBN": ({"buffers": "averaged", "keep": ["1"]}, ["1.*"]),
    "local statistics": ({"buffers": "local"}, ["1.running_*"]),
    "one bias": ({"buffers": "averaged", "keep": ["*.bias", "1.running_mean"]}, ["*.bias", "1.running_mean"]),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_stay_are_those_of_a_plain_loop(name: str) -> None:
    settings, stays = PARTS[name]
    sim, expected = trained(FedAvg(), **settings), plain_rounds(normalised(), stays)
    for client, module in enumerate(expected):
        assert_same_numbers(sim.client_model(client), module)
        own = sim.objective.space.row_major(sim.own_model(client))
        torch.testing.assert_close(own, nn.utils.parameters_to_vector(module.parameters()), rtol=0, atol=1e-9)
    data = sim.data
    hits = [float((module(x).argmax(-1) == y).double().mean()) for module, (x, y) in
            ((module, data.client(i)) for i, module in enumerate(expected))]  # fmt: skip
    assert sim.history[-1]["personal_accuracy"] == pytest.approx(sum(hits) / len(hits))
    assert sim.result().summary["personal_accuracy_worst"] == pytest.approx(min(hits))


def test_frozen_statistics_are_those_of_the_model_and_its_affine_parameters_train() -> None:
    model = normalised()
    with torch.no_grad():
        model[1].running_mean.uniform_(-1, 1)
        model[1].running_var.uniform_(0.5, 2)
    sim, expected = trained(FedAvg(), model=model, buffers="frozen"), plain_rounds(model, frozen=True)[0]
    assert_same_numbers(sim.model, expected)
    assert torch.equal(sim.model[1].running_mean, model[1].running_mean)
    assert not torch.equal(sim.model[1].weight, model[1].weight)


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_second_pass_of_sam_moves_no_statistic(rho: float) -> None:
    """After one step, the statistics are those of one pass of each client at the received model, for any radius."""
    sim = trained(FedSAM(rho=rho), buffers="averaged", rounds=1, client={"epochs": 1}, weights="uniform")
    expected = []
    for i in range(len(SIZES)):
        model = normalised()
        model(sim.data.client(i)[0])
        expected.append(numbers(model))
    for name in ("1.running_mean", "1.running_var"):
        mean = sum(one[name] for one in expected) / len(expected)
        torch.testing.assert_close(numbers(sim.model)[name], mean, rtol=0, atol=1e-12)


def test_a_method_perturbs_what_is_sent_and_the_rest_follows_the_same_gradient() -> None:
    """One step of FedSAM by hand, with a head that stays: the ball lies in the space of the other parameters."""
    model, rho = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double(), 0.3
    settings = {"keep": ["2.*"], "rounds": 1, "client": {"epochs": 1}, "data": federation((12,)), "participation": 1}
    sim = trained(FedSAM(rho=rho), model=model, **settings)
    x, y = sim.data.client(0)
    moved = deepcopy(model)
    cross_entropy(moved(x), y).backward()
    sent = list(moved[0].parameters())
    norm = torch.cat([p.grad.flatten() for p in sent]).norm()
    with torch.no_grad():
        for p in sent:
            p.add_(rho * p.grad / norm)
    moved.zero_grad()
    cross_entropy(moved(x), y).backward()
    expected = deepcopy(model)
    with torch.no_grad():
        for p, at in zip(expected.parameters(), moved.parameters(), strict=True):
            p.sub_(CLIENT["lr"] * at.grad)
    assert_same_numbers(sim.client_model(0), expected)


def test_the_proximal_term_leaves_what_stays_alone() -> None:
    """Clipping as FL-Simulator does leaves the proximal term out, which acts on the parameters that are sent."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    settings = {"keep": ["2"], "rounds": 1, "client": {"epochs": 3, "lr": 1e-3}}
    heads = [trained(FedProx(mu=mu), model=model, **settings).client_model(0) for mu in (0.0, 100.0)]  # fmt: skip
    moves = [float((head[2].weight - model[2].weight).detach().norm()) for head in heads]
    assert moves[1] == pytest.approx(moves[0], rel=0.05)
    assert moves[0] > 0


RESUMED = [
    {"buffers": "averaged"},
    {"buffers": "local"},
    {"buffers": "frozen", "keep": ["3"]},
    {"buffers": "averaged", "keep": ["1", "3.bias"]},
]


def test_clipping_without_the_proximal_term_is_that_of_what_is_sent() -> None:
    """One step as FL-Simulator clips: clip(d - mu w) + mu w, where the term mu w is that of the parameters sent."""
    model, mu = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double(), 2.0
    client = {"epochs": 1, "max_norm": 0.1, "clip_scope": "flsim"}
    sim = trained(FedProx(mu=mu), model=model, keep=["2"], rounds=1, client=client, data=federation((12,)),
                  participation=1)  # fmt: skip
    x, y = sim.data.client(0)
    gradients = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
    pulls = [mu * p.detach() for p in model[0].parameters()] + [torch.zeros_like(p) for p in model[2].parameters()]
    clipped = [g - pull for g, pull in zip(gradients, pulls, strict=True)]
    factor = 0.1 / float(torch.cat([part.flatten() for part in clipped]).norm())
    expected = deepcopy(model)
    with torch.no_grad():
        for p, part, pull in zip(expected.parameters(), clipped, pulls, strict=True):
            p.sub_(CLIENT["lr"] * (factor * part + pull))
    assert_same_numbers(sim.client_model(0), expected)


@pytest.mark.parametrize(("name", "settings"), in_turns(covering_methods(), RESUMED), ids=str)
def test_a_run_resumes_to_the_same_bits(name: str, settings: Mapping[str, object], tmp_path: Path) -> None:
    method = for_few_rounds(find(name))
    make = lambda: simulation(method, **settings, participation=2, weights="uniform")  # noqa: E731
    skip_refused(make)
    whole, resumed = whole_and_resumed(make, 2, tmp_path)
    assert torch.equal(resumed.w, whole.w)
    for name, x in numbers(whole.model).items():
        assert torch.equal(numbers(resumed.model)[name], x)
    if not whole.has_whole_model:
        assert resumed.history[-1]["personal_accuracy"] == whole.history[-1]["personal_accuracy"]


def test_scores_of_a_last_round_are_taken_back_when_more_rounds_follow(tmp_path: Path) -> None:
    """Rounds 2 and 4 are evaluated, and round 3 only if it is the last."""
    settings = {"buffers": "local", "eval_every": 2, "participation": ff.HeldOut(1.0, 0.34)}
    short, longer, whole = (simulation(FedAvg(), rounds=rounds, **settings) for rounds in (3, 4, 4))
    for _ in short:
        pass
    assert {"personal_accuracy", "held_out_accuracy", "test_accuracy"} <= set(short.history[-1])
    short.save(tmp_path / "state.safetensors")
    longer.load(tmp_path / "state.safetensors")
    for sim in (longer, whole):
        for _ in sim:
            pass
    assert [set(row) for row in longer.history] == [set(row) for row in whole.history]
    assert "personal_accuracy" not in longer.history[2]


@pytest.mark.usefixtures("forked_processes")
def test_workers_train_to_the_same_bits() -> None:
    one, many = (
        trained(find("SCAFFOLD")(), buffers="averaged", keep=["3"], workers=n, weights="uniform") for n in (1, 2)
    )
    many.close()
    assert torch.equal(one.w, many.w)
    for client in range(len(SIZES)):
        for name, x in numbers(one.client_model(client)).items():
            assert torch.equal(numbers(many.client_model(client))[name], x)


def test_a_stack_trains_parts_as_one_client_after_another(covering_method: ff.Method) -> None:
    settings = {"buffers": "frozen", "keep": ["3", "1.bias"], "client": {"batch_size": 4}, "weights": "uniform"}
    skip_refused(lambda: simulation(covering_method, **settings))
    one, many = (trained(covering_method, executor=executor, **settings) for executor in ("sequential", "stacked"))
    for client in range(len(SIZES)):
        torch.testing.assert_close(many.own_model(client), one.own_model(client), rtol=1e-11, atol=1e-12)


def test_the_saved_model_has_the_statistics(tmp_path: Path) -> None:
    run = simulation(FedAvg(), buffers="averaged").run()
    run.save(tmp_path / "run")
    stored = ff.load_run(tmp_path / "run")
    assert stored.settings["buffers"] == "averaged"
    loaded = stored.load_into(normalised(seed=1))
    for name, x in numbers(run.model).items():
        assert torch.equal(numbers(loaded)[name], x)


def test_a_model_without_its_parts_is_not_loaded(tmp_path: Path) -> None:
    sim = simulation(FedAvg(), model="mlp", model_options={"hidden": [4]}, keep=["*.bias"], dtype=torch.float64)
    sim.run().save(tmp_path / "run")
    for use in (lambda: ff.load_run(tmp_path / "run").model, lambda: sim.predict(sim.data.x[:2])):
        with pytest.raises(InputError, match=r"part of the model stay.*client_model\(i\)"):
            use()


def test_the_best_model_has_its_statistics_and_must_be_whole() -> None:
    best = ff.BestModel(metric="test_accuracy")
    run = simulation(FedAvg(), buffers="averaged", rounds=1, callbacks=[best]).run()
    assert best.parameters is not None
    assert torch.equal(best.parameters["1.running_var"], numbers(run.model)["1.running_var"])
    with pytest.raises(InputError, match="BestModel: each client has a model of its own"):
        simulation(FedAvg(), buffers="local", rounds=1, callbacks=[best]).run()


def test_bytes_are_those_of_what_is_sent() -> None:
    """The head of 18 numbers stays, the ten statistics are sent beside the rest."""
    sim = trained(FedAvg(), buffers="averaged", keep=["3"], rounds=1)
    sent = sum(p.numel() for p in normalised().parameters()) - 18 + 10
    assert sim.history[0]["bytes_up"] == sim.history[0]["bytes_down"] == len(SIZES) * 8 * sent
    assert sim.result().cost.client == 18


def test_drift_is_that_of_the_parameters_that_are_sent() -> None:
    """With everything but one bias staying, the drift is the mean length of the moves of this bias."""
    data = federation((12,))
    sim = trained(FedAvg(), buffers="frozen", keep=["0", "1", "3.weight"], rounds=1, data=data, participation=1)
    moved = sim.model[3].bias - normalised()[3].bias
    assert sim.history[0]["drift"] == pytest.approx(float(moved.detach().norm()))


def test_flatness_is_measured_with_the_averaged_statistics() -> None:
    """The measures of a run are those of its model in evaluation mode; without a whole model, none is taken."""
    sim = trained(FedAvg(), buffers="averaged")
    measured, alone = sim.flatness(["sharpness"]), ff.flatness(sim.model, sim.data, ["sharpness"])
    assert measured["sharpness"].value == pytest.approx(alone["sharpness"].value, rel=1e-9)
    other = ff.flatness(normalised(), sim.data, ["sharpness"])
    assert abs(other["sharpness"].value - alone["sharpness"].value) > 1e-6
    assert not trained(FedAvg(), buffers="local").flatness(["sharpness"])
    protocol = sim.flatness(["sharpness"]).findings[0].protocol
    assert "running statistics of the server" in protocol


def test_full_gradients_are_not_filled_up_with_other_samples() -> None:
    """MimeLite's gradient on all samples: batches of 5 and of 3 of a client of eight, each normalised by itself."""
    data = federation((8, 8))
    sim = simulation(MimeLite(), buffers="averaged", data=data, client={"batch_size": 5})
    executor = sim.executor
    model = normalised()
    w = sim.objective.space.flatten(model)
    found = executor._full_gradient(executor.batches.plan(0, executor.batches.longest_first(0, sim.cohort(0)))
                                    .single(0), w)  # fmt: skip
    x, y = data.client(0)
    loss = (5 * cross_entropy(model(x[:5]), y[:5]) + 3 * cross_entropy(model(x[5:]), y[5:])) / 8
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_teacher_changes_no_statistic() -> None:
    """FedGMT's teacher runs the same samples; the statistics of a step are those of the client's own pass."""
    sim = trained(FedGMT(), buffers="averaged", rounds=1, client={"epochs": 1}, weights="uniform")
    plain = trained(FedAvg(), buffers="averaged", rounds=1, client={"epochs": 1}, weights="uniform")
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(numbers(sim.model)[name], numbers(plain.model)[name], rtol=0, atol=1e-12)


def test_evaluating_and_gradients_leave_the_statistics_of_the_module() -> None:
    objective = Objective(normalised(), buffers="averaged")
    before = {name: x.clone() for name, x in numbers(objective.module).items()}
    x, y = federation((12,)).client(0)
    objective.gradient(objective.space.flatten(objective.module), Batch(x, y))
    assert all(torch.equal(x, before[name]) for name, x in numbers(objective.module).items())
    assert objective.module[1].num_batches_tracked == 0


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=8), st.integers(0, 2))
def test_a_division_joins_what_it_splits(parts: list[tuple[int, bool]], axes: int) -> None:
    stays = torch.tensor([stay for size, stay in parts for _ in range(size)], dtype=torch.bool)
    division, lead = Division.of(*zip(*parts, strict=True)) if parts else Division.of([], []), (2, 3)[:axes]
    x = torch.rand(*lead, len(stays))
    sent, kept = division.split(x)
    assert torch.equal(sent, x[..., ~stays])
    assert torch.equal(kept, x[..., stays])
    assert (division.sent, division.kept) == (sent.shape[-1], kept.shape[-1])
    assert torch.equal(division.joined(sent, kept), x)


def mean_of_all_batches() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))


def without_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))


REFUSED = {
    "needed": ({}, "layer 1 is BatchNorm1d.*set buffers"),
    "unknown": ({"buffers": "global"}, "buffers = 'global' is unknown"),
    "no layer": ({"buffers": "local", "model": nn.Linear(6, 3)}, "no layer with running statistics"),
    "mean of all batches": ({"buffers": "local", "model": mean_of_all_batches()}, "momentum=None"),
    "without statistics": ({"buffers": "local", "model": without_statistics()}, "keeps no running statistics"),
    "several processes": ({"buffers": "local", "model": nn.Sequential(nn.Linear(6, 3), nn.SyncBatchNorm(3))},
                          "several processes"),
    "no match": ({"buffers": "local", "keep": ["haed.*"]}, "keep = 'haed.\\*' matches no"),
    "all": ({"buffers": "averaged", "keep": ["*"]}, "names every trainable parameter"),
    "a text": ({"buffers": "averaged", "keep": "3.*"}, "keep must be a list"),
    "stacked": ({"buffers": "averaged", "executor": "stacked"}, "use 'sequential'"),
    "guard": ({"buffers": "averaged", "guard": ff.Guard(multiple=3.0)}, "guard: a norm in parameter units"),
    "alone": ({"buffers": "averaged", "method": find("Local")()}, "send nothing; use 'local'"),
    "one model": ({"buffers": "local", "method": find("Centralised")()}, "trains one model; use 'averaged'"),
    "alone with a head": ({"buffers": "local", "keep": ["3"], "method": find("Local")()}, "keep does not go"),
    "one sample": ({"buffers": "averaged", "client": {"batch_size": 11}}, "has a batch of one sample"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_in_one_line(name: str) -> None:
    settings, message = REFUSED[name]
    settings = {"method": FedAvg()} | settings
    with pytest.raises(InputError, match=message) as raised:
        _ = simulation(**settings).executor
    assert "\n" not in str(raised.value)


def test_clients_alone_keep_their_statistics() -> None:
    sim = trained(find("Local")(), buffers="local")
    data = sim.data
    for i in range(len(SIZES)):
        model = normalised()
        optimiser = torch.optim.SGD(model.parameters(), CLIENT["lr"])
        for _ in range(ROUNDS * CLIENT["epochs"]):
            optimiser.zero_grad()
            cross_entropy(model(data.client(i)[0]), data.client(i)[1]).backward()
            optimiser.step()
        assert_same_numbers(sim.client_model(i), model)
