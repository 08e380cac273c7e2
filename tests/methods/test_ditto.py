from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.methods import find
from fedflat.rounds.cost import gradients_per_step, vector_cost
from support.federation import simulation, tanh_network, whole_and_resumed
from support.problem import Linear, Problem, Tanh, assert_agrees
from support.quadratic_clients import LR, Bowls, bowls

Ditto = find("Ditto")
HARD = {"weight_decay": 0.05, "max_norm": 0.4, "momentum": 0.6}


def clip(d: np.ndarray, most: float) -> np.ndarray:
    return d * min(1.0, most / np.linalg.norm(d))


def transcription(p: Problem, lam: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """The server's model and the clients' own; absent clients keep theirs."""
    w, own = p.w0, [p.w0] * p.N
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            v, x = own[i], w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v) + lam * (v - w), p.lr(t))
                x = p.step(x, p.grad(i, x), p.lr(t))
            own[i] = v
            ends.append(x)
        w = p.mean(cohort, ends)
    return w, own


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.8)[0], Ditto(lam=0.8), ("uniform", "samples"))


@pytest.mark.parametrize("lam", [0.0, 0.8])
@pytest.mark.parametrize("model", [Linear(), Tanh()], ids=["linear", "tanh"])
def test_transcription_of_own_models(model: Linear | Tanh, lam: float) -> None:
    """Client 3 is first asked in round 1, and begins with the initial model all the same."""
    p = Problem(model)
    sim = ff.Simulation(
        model=p.module, data=ff.FederatedData.from_clients(p.data, classes=p.classes), method=Ditto(lam=lam),
        client=ff.Client(lr=p.eta, lr_decay=p.decay, steps=p.K, weight_decay=p.wd),
        participation=[list(cohort) for cohort in p.cohorts],
    )  # fmt: skip
    sim.run()
    for i, expected in enumerate(transcription(p, lam)[1]):
        assert np.abs(sim.own_model(i).numpy() - expected).max() <= 1e-10
        assert np.linalg.norm(expected - p.w0) > 1e-2


def hard_rounds(F: Bowls, lam: float, cohorts: list[list[int]]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Client i takes sizes[i] steps, with clipping, decay and momentum of each of its two models."""
    w, own = F.w, [F.w] * len(F.sizes)
    for cohort in cohorts:
        ends = []
        for i in cohort:
            v, x, m, n = own[i], w, 0.0, 0.0
            for _ in range(F.sizes[i]):
                m = HARD["momentum"] * m + clip(F.gradient(i, x), HARD["max_norm"]) + HARD["weight_decay"] * x
                n = HARD["momentum"] * n + HARD["weight_decay"] * v
                n = n + clip(F.gradient(i, v) + lam * (v - w), HARD["max_norm"])
                x, v = x - LR * m, v - LR * n
            own[i] = v
            ends.append(x)
        w = sum(ends) / len(ends)
    return w, own


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_transcription_with_unequal_steps_clipping_decay_and_momentum(executor: str) -> None:
    F, cohorts = bowls(4, sizes=(5, 1, 3, 4)), [[0, 1, 2], [1, 3], [0, 2, 3], [0, 1, 3]]
    sim = F.simulation(Ditto(lam=0.7), steps=None, client=HARD, participation=cohorts, executor=executor)
    sim.run()
    w, own = hard_rounds(F, 0.7, cohorts)
    assert np.abs(sim.w.numpy() - w).max() <= 1e-10
    for i, expected in enumerate(own):
        assert np.abs(sim.own_model(i).numpy() - expected).max() <= 1e-10


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("lam", [0.0, 3.0])
@pytest.mark.parametrize("client", [{}, HARD, {"optimizer": "adamw", "lr": 0.01}], ids=["sgd", "hard", "adamw"])
def test_the_servers_model_is_fedavgs_to_the_last_bit(executor: str, lam: float, client: dict) -> None:
    runs = [simulation(method, client=client, executor=executor) for method in (Ditto(lam=lam), find("FedAvg")())]
    for sim in runs:
        sim.run()
    assert torch.equal(runs[0].w, runs[1].w)
    assert [row["train_loss"] for row in runs[0].history] == [row["train_loss"] for row in runs[1].history]


@pytest.mark.parametrize("client", [{}, HARD, {"optimizer": "adamw", "lr": 0.01}], ids=["sgd", "hard", "adamw"])
def test_without_the_pull_own_models_are_trained_alone(client: dict) -> None:
    """With partial participation, too: both begin with the initial model."""
    ditto, local = (simulation(m, client=client, executor="sequential") for m in (Ditto(lam=0.0), find("Local")()))
    ditto.run()
    local.run()
    for i in range(ditto.data.clients):
        assert torch.equal(ditto.own_model(i), local.own_model(i))


def test_own_models_of_a_strong_pull_reach_the_proximal_point() -> None:
    """After many steps of one round, v_i is argmin F_i(v) + lam/2 ||v - w||^2."""
    F, lam = bowls(3), 5.0
    sim = F.simulation(Ditto(lam=lam), steps=400, participation=3, rounds=1)
    sim.run()
    for i in range(3):
        expected = np.linalg.solve(F.A[i] + lam * np.eye(4), F.A[i] @ F.m[i] + lam * F.w)
        assert np.abs(sim.own_model(i).numpy() - expected).max() <= 1e-10


SCOPES = [("loss_only", "gradient"), ("gradient", "gradient"), ("flsim", "without the pull")]


@pytest.mark.parametrize(("scope", "clipped"), SCOPES)
def test_the_scope_of_clipping_holds_for_own_models(scope: str, clipped: str) -> None:
    """Two steps of one client; in the first one, the pull is zero."""
    F, lam, most = bowls(1), 2.0, 0.3
    client = {"max_norm": most, "clip_scope": scope}
    sim = F.simulation(Ditto(lam=lam), steps=2, client=client, participation=1, rounds=2)
    sim.run()
    w = v = F.w
    for _ in range(2):
        x = w
        for _ in range(2):
            g, gx = F.gradient(0, v), F.gradient(0, x)
            if clipped == "gradient":
                d = clip(g, most) + lam * (v - w)
            else:
                d = clip(g + lam * (v - w) - lam * v, most) + lam * v
            v, x = v - LR * d, x - LR * clip(gx, most)
        w = x
    assert np.abs(sim.own_model(0).numpy() - v).max() <= 1e-10


def test_what_it_costs() -> None:
    cost = vector_cost(Ditto())
    assert (cost.down, cost.up, cost.client, cost.stored) == (1, 1, 1, 2)
    assert gradients_per_step(Ditto()) == 2
    ditto, fedavg = (simulation(method).run().summary for method in (Ditto(), find("FedAvg")()))
    factors = {name: ditto[name] / fedavg[name] for name in ("gradients", "bytes_up", "bytes_down")}
    assert factors == {"gradients": 2, "bytes_up": 1, "bytes_down": 1}


def test_measures_by_client_are_those_of_own_models() -> None:
    sim = simulation(Ditto())
    run = sim.run()
    hits = []
    for i in range(sim.data.clients):
        x, y = sim.data.client(i)
        hits.append(float((sim.client_model(i)(x).argmax(-1) == y).double().mean()))
    assert sim.history[-1]["personal_accuracy"] == pytest.approx(np.mean(hits))
    assert run.summary["personal_accuracy_worst"] == pytest.approx(min(hits))
    x, y = sim.data.test
    assert sim.history[-1]["test_accuracy"] == pytest.approx(float((sim.model(x).argmax(-1) == y).double().mean()))


def test_a_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(lambda: simulation(Ditto(), client=HARD), 3, tmp_path)
    assert torch.equal(whole.w, resumed.w)
    for i in range(whole.data.clients):
        assert torch.equal(whole.own_model(i), resumed.own_model(i))


@pytest.mark.usefixtures("forked_processes")
def test_workers_and_inside_another_method_own_models_have_the_same_bits() -> None:
    one, many = (simulation(Ditto(), executor="sequential", workers=n) for n in (1, 2))
    around = simulation(find("SWA")(base=Ditto(), lr_low=None, cycle=1), executor="sequential")
    for sim in (one, many, around):
        sim.run()
    many.close()
    for i in range(one.data.clients):
        assert torch.equal(one.own_model(i), many.own_model(i))
        assert torch.equal(one.own_model(i), around.own_model(i))


@pytest.mark.usefixtures("traced")
def test_a_compiled_step_trains_own_models() -> None:
    one, many = (simulation(Ditto(), client=HARD, executor=executor) for executor in ("sequential", "compiled"))
    one.run()
    many.run()
    assert many.executor.step.works
    for i in range(one.data.clients):
        torch.testing.assert_close(many.own_model(i), one.own_model(i), rtol=0, atol=1e-12)


REFUSED = {
    "keep": ({"keep": ["2"]}, "keep does not go with Ditto"),
    "averaged": ({"buffers": "averaged"}, "buffers = 'averaged' does not go with Ditto"),
    "local": ({"buffers": "local"}, "buffers = 'local' does not go with Ditto"),
    "kept": (
        {"client": {"momentum": 0.5, "optimizer_state": "kept"}}, "client.optimizer_state = 'kept' does not go with"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_own_models_do_not_go_with_is_refused_in_one_line(name: str) -> None:
    settings, message = REFUSED[name]
    model = ff.models.build("mlp", 3, (6,), hidden=[4], batch_norm=True) if "buffers" in settings else tanh_network()
    with pytest.raises(InputError, match=message) as raised:
        simulation(Ditto(), model=model.double(), **settings)
    assert "\n" not in str(raised.value)
