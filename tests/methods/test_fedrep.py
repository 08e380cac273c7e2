from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.methods import find
from support.federation import federation, simulation, tanh_network, whole_and_resumed
from support.problem import Problem, Tanh

FedRep = find("FedRep")
HARD = {"weight_decay": 0.05, "max_norm": 0.3, "momentum": 0.6}
BODY = 5 * 4 + 5  # parameters of the first layer of `Tanh` with four features


def clip(d: np.ndarray, most: float) -> np.ndarray:
    return d * min(1.0, most / max(np.linalg.norm(d), most))


def transcription(p: Problem, head_steps: int, steps: tuple[int, ...]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The server's body and the clients' heads; client i takes steps[i] steps of clipping, decay and momentum."""
    body, heads = p.w0[:BODY], [p.w0[BODY:]] * p.N
    for t, cohort in enumerate(p.cohorts):
        ends = []
        for i in cohort:
            b, h, of_body, of_head = body, heads[i], 0.0, 0.0
            for k in range(steps[i]):
                g = p.grad(i, np.concatenate([b, h]))
                if k < head_steps:
                    of_head = HARD["momentum"] * of_head + clip(g[BODY:], HARD["max_norm"]) + HARD["weight_decay"] * h
                    h = h - p.lr(t) * of_head
                else:
                    of_body = HARD["momentum"] * of_body + clip(g[:BODY], HARD["max_norm"]) + HARD["weight_decay"] * b
                    b = b - p.lr(t) * of_body
            heads[i] = h
            ends.append(b)
        body = p.mean(cohort, ends)
    return body, heads


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("head_steps", [0, 1, 2, 5])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_transcription(head_steps: int, weights: str, executor: str) -> None:
    """Equal numbers of steps; with 5 the body rests, and with 0 the heads do."""
    p = Problem(Tanh(), weights, K=4)
    sim = ff.Simulation(
        model=p.module, data=ff.FederatedData.from_clients(p.data, classes=p.classes),
        method=FedRep(head_steps=head_steps), client=ff.Client(lr=p.eta, lr_decay=p.decay, steps=p.K, **HARD),
        participation=[list(cohort) for cohort in p.cohorts], weights=weights, executor=executor,
    )  # fmt: skip
    sim.run()
    body, heads = transcription(p, head_steps, (p.K,) * p.N)
    for i in range(p.N):
        assert np.abs(sim.own_model(i).numpy() - np.concatenate([body, heads[i]])).max() <= 1e-10
        assert np.array_equal(heads[i], p.w0[BODY:]) == (head_steps == 0)
    assert (np.abs(body - p.w0[:BODY]).max() < 1e-14) == (head_steps == 5)
    assert np.array_equal(sim.w.numpy()[BODY:], p.w0[BODY:]), "the server's head is the initial one"


class OneByOne(Problem):
    """Client i's samples are copies of its first, so that a batch of one is as good as all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.data = [(np.repeat(x[:1], n, 0), np.repeat(y[:1], n)) for (x, y), n in
                     zip(self.data, self.sizes, strict=True)]  # fmt: skip


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("head_steps", [1, 3])
def test_transcription_with_unequal_steps(head_steps: int, executor: str) -> None:
    """Client i takes one step for each of its samples, which are alike."""
    p = OneByOne(Tanh())
    sim = ff.Simulation(
        model=p.module, data=ff.FederatedData.from_clients(p.data, classes=p.classes),
        method=FedRep(head_steps=head_steps), client=ff.Client(lr=p.eta, lr_decay=p.decay, batch_size=1, **HARD),
        participation=[list(cohort) for cohort in p.cohorts], executor=executor,
    )  # fmt: skip
    sim.run()
    body, heads = transcription(p, head_steps, p.sizes)
    for i in range(p.N):
        assert np.abs(sim.own_model(i).numpy() - np.concatenate([body, heads[i]])).max() <= 1e-10


def frozen_head() -> nn.Module:
    model = tanh_network()
    for p in model[2].parameters():
        p.requires_grad_(False)
    return model


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_without_head_steps_it_is_fedavg_on_the_body(executor: str) -> None:
    """Of a model whose head is frozen; clipping, decay and momentum included."""
    settings = {"client": HARD, "executor": executor}
    sim = simulation(FedRep(head_steps=0), **settings)
    body = simulation(find("FedAvg")(), model=frozen_head(), **settings)
    sim.run()
    body.run()
    assert (sim.w[: len(body.w)] - body.w).abs().max() <= 1e-14


def test_the_scope_of_clipping_is_the_part_that_moves() -> None:
    """With the other scopes a gradient is clipped, which for FedAvg's step is the whole direction."""
    runs = [
        simulation(FedRep(), client=HARD | {"clip_scope": scope}, executor="sequential")
        for scope in ("full", "loss_only", "gradient")
    ]
    for sim in runs:
        sim.run()
    for i in range(runs[0].data.clients):
        for other in runs[1:]:
            assert (runs[0].own_model(i) - other.own_model(i)).abs().max() <= 1e-14


def test_the_head_is_the_last_layer_or_what_keep_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        last = simulation(FedRep())
    assert "the head that stays with the clients is the last layer, 2" in caplog.text
    named, first = (simulation(FedRep(), keep=keep) for keep in (["2.*"], ["0"]))
    assert (last.settings()["keep"], named.settings()["keep"]) == (["2"], ["2.*"])
    for sim in (last, named, first):
        sim.run()
    assert torch.equal(last.w, named.w)
    kept = [sim.objective.space.views(sim.w - sim.own_model(0)) for sim in (last, first)]
    moved = [sorted({name[0] for name, x in views.items() if x.abs().max() > 0}) for views in kept]
    assert moved == [["2"], ["0"]]


def test_what_it_sends_and_keeps() -> None:
    cost = simulation(FedRep()).cost
    body, head = 6 * 7 + 7, 7 * 3 + 3
    assert (cost.down, cost.up, cost.client) == (body, body, head)


@pytest.mark.usefixtures("forked_processes")
def test_workers_a_wrapper_and_a_resumed_run_have_the_same_bits(tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(lambda: simulation(FedRep(), client=HARD, executor="sequential"), 3, tmp_path)
    around = find("SWA")(base=FedRep(), lr_low=None, cycle=1)
    others = [simulation(FedRep(), client=HARD, executor="sequential", workers=2),
              simulation(around, client=HARD, executor="sequential")]  # fmt: skip
    for sim in others:
        sim.run()
    for sim in (resumed, *others):
        for i in range(whole.data.clients):
            assert torch.equal(whole.own_model(i)[-24:], sim.own_model(i)[-24:])
    others[0].close()


@pytest.mark.usefixtures("traced")
def test_a_compiled_step_moves_one_part_after_the_other() -> None:
    executors = ("sequential", "compiled")
    one, many = (simulation(FedRep(head_steps=2), client=HARD, rounds=2, executor=e) for e in executors)
    fedper = simulation(find("FedAvg")(), client=HARD, rounds=2, executor="compiled", keep=["2"])
    for sim in (one, many, fedper):
        sim.run()
    assert many.executor.step.works
    assert len(many.executor.step.forms) == len(fedper.executor.step.forms), "one program for all steps of a form"
    for i in range(one.data.clients):
        torch.testing.assert_close(many.own_model(i), one.own_model(i), rtol=0, atol=1e-12)


def test_a_model_without_a_body_is_refused() -> None:
    with pytest.raises(InputError, match="FedRep: the model has one layer") as raised:
        simulation(FedRep(), model=nn.Linear(6, 3).double())
    assert "\n" not in str(raised.value)


def test_adamw_is_refused() -> None:
    with pytest.raises(InputError, match=r"client\.optimizer = 'adamw' does not go with FedRep"):
        simulation(FedRep(), client={"optimizer": "adamw"}, data=federation())


WARNED = [({"steps": 2, "epochs": None}, True), ({"steps": 3, "epochs": None}, False),
          ({"epochs": 2, "batch_size": None}, True), ({"epochs": 1}, False)]  # fmt: skip


@pytest.mark.parametrize(("client", "warned"), WARNED, ids=str)
def test_clients_that_never_move_the_body_are_warned_of(
    client: dict, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the number of steps depends on the clients' samples, nothing is said."""
    with caplog.at_level(logging.WARNING):
        simulation(FedRep(head_steps=2), client=client)
    assert ("none moves the body" in caplog.text) == warned
