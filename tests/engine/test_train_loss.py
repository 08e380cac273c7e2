"""The training loss of a round: from the passes of the local steps themselves, the same number whoever computes it."""

from __future__ import annotations

import re
from math import isnan
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core import local
from fedflat.core.descent import Descent
from fedflat.core.local import local_round
from fedflat.core.method import Context, Method
from fedflat.core.objective import Objective
from fedflat.engine import stacked
from fedflat.engine.stacked import Stacked
from fedflat.methods import FedAvg, FedGMT, FedLESAM, FedRobust, FedSAM, all_methods
from support.effort import for_few_rounds, in_test_all
from support.federation import federation, simulation, tanh_network

LR, RHO, STEPS = 0.3, 0.2, 3
ONE_BATCH = {"client": {"lr": LR, "lr_decay": 1.0, "epochs": STEPS, "batch_size": None}, "participation": 6}


def losses(sim: ff.Simulation) -> list[float]:
    for _ in sim:
        pass
    return [row["train_loss"] for row in sim.history]


def loss_and_gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    loss = cross_entropy(model(x), y)
    return loss.item(), list(torch.autograd.grad(loss, list(model.parameters())))


def moved(model: nn.Module, by: list[torch.Tensor], times: float) -> None:
    with torch.no_grad():
        for p, x in zip(model.parameters(), by, strict=True):
            p.add_(x, alpha=times)


def full_batch_descent(x: torch.Tensor, y: torch.Tensor, rho: float) -> float:
    """The mean loss over the steps of SAM on all samples of a client, in plain PyTorch; rho = 0 is descent."""
    model, total = tanh_network(), 0.0
    for _ in range(STEPS):
        loss, g = loss_and_gradients(model, x, y)
        total += loss
        length = torch.sqrt(sum((p**2).sum() for p in g))
        moved(model, g, rho / float(length))
        _, ascended = loss_and_gradients(model, x, y)
        moved(model, g, -rho / float(length))
        moved(model, ascended if rho else g, -LR)
    return total / STEPS


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(("method", "rho"), [(FedAvg(), 0.0), (FedSAM(rho=RHO), RHO)])
def test_it_is_the_mean_over_clients_and_steps_of_the_loss_at_the_iterate(
    method: Method, rho: float, weights: str
) -> None:
    data = federation()
    sim = simulation(method, data=data, weights=weights, rounds=1, **ONE_BATCH)
    each = [full_batch_descent(*data.client(i), rho) for i in range(data.clients)]
    share = data.sizes / data.sizes.sum() if weights == "samples" else [1 / data.clients] * data.clients
    expected = sum(p * one for p, one in zip(share, each, strict=True))
    assert losses(sim) == pytest.approx([expected], rel=1e-6)


def test_each_minibatch_counts_once_however_short_it_is() -> None:
    """With a step size of almost nothing the losses are those of the initial model: means of batches, then of steps."""
    client = {"lr": 1e-12, "epochs": 1, "batch_size": 4}
    data = federation(sizes=(5,))
    sim = simulation(FedAvg(), data=data, client=client, participation=1, rounds=1)
    plan = sim.executor.batches.plan(0, sim.cohort(0))
    batches = [plan.samples[0, k, :count] for k, count in enumerate(plan.counts[0])]
    assert [len(batch) for batch in batches] == [4, 1]
    each = [cross_entropy(tanh_network()(data.x[batch]), data.y[batch]).item() for batch in batches]
    assert losses(sim) == pytest.approx([sum(each) / 2], rel=1e-6)


@pytest.mark.parametrize("method", [FedGMT(), FedRobust()], ids=lambda x: type(x).__name__)
def test_penalties_are_left_out_and_unchanged_samples_are_those_of_fedavg(method: Method) -> None:
    """In the first step FedRobust's map changes nothing, and FedGMT's teacher only adds a penalty."""
    settings = ONE_BATCH | {"client": {"lr": LR, "epochs": 1, "batch_size": None}, "rounds": 1}
    assert losses(simulation(method, **settings)) == losses(simulation(FedAvg(), **settings))


def test_where_a_method_perturbs_first_it_is_the_loss_there() -> None:
    """FedLESAM's perturbation is known before the step: zero in the first round, then the length rho, upwards."""
    settings = ONE_BATCH | {"rounds": 2}
    plain, perturbed = (losses(simulation(FedLESAM(rho=rho), **settings)) for rho in (1e-9, 0.5))
    assert plain[0] == perturbed[0]
    assert perturbed[1] > plain[1] * 1.01


def test_it_is_rounded_alike_one_by_one_and_stacked(covering_method: Method) -> None:
    """Uneven clients, padded batches: models differ by 1e-15, and what a client loses is rounded to 1e-7."""
    one, many = (losses(simulation(covering_method, executor=e)) for e in ("sequential", "stacked"))
    assert one == many
    assert len(set(one)) == len(one)


def test_neither_chunks_nor_a_dry_round_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = losses(simulation(FedSAM(), executor="stacked"))
    monkeypatch.setattr(Stacked, "numbers_at_once", 2 * 73)
    sim = simulation(FedSAM(), executor="stacked")
    assert sim.executor.chunk == 2
    sim.round()
    sim.flatness(["consistency"])
    assert losses(sim) == expected


@pytest.mark.slow
@in_test_all
def test_a_compiled_step_gives_it(covering_method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and run as torch would. `make test` has this in `test_compiled.py`, with the models."""
    monkeypatch.setattr(stacked, "compile_graph", lambda graph, _: graph)
    one, many = (simulation(covering_method, executor=e, rounds=3) for e in ("sequential", "compiled"))
    assert losses(one) == pytest.approx(losses(many), rel=1e-7)
    assert many.executor.step.works


@pytest.mark.slow
@in_test_all
def test_the_real_compiler_gives_it() -> None:
    """`make test` has this in `test_compiled.py`, with the models."""
    one, many = (simulation(FedSAM(), executor=e, rounds=3) for e in ("sequential", "compiled"))
    assert losses(one) == pytest.approx(losses(many), rel=1e-6)
    assert many.executor.step.works


def test_it_costs_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many forward passes as gradients: two in each step of FedSAM."""
    sim = simulation(FedSAM(), executor="sequential", rounds=2)
    passes = []
    forward = Objective._scores
    monkeypatch.setattr(
        Objective, "_scores", lambda self, *given: (passes.append(self.module.training), forward(self, *given))[1]
    )
    losses(sim)
    assert sum(passes) == sim.history[-1]["gradients"]


def test_an_oracle_that_does_not_know_losses_gives_none() -> None:
    method = FedAvg()
    down = method.broadcast(method.init_server(torch.ones(3)))
    result = local_round(method, down, method.init_client(down), [(lambda w: w, 1)], Context(0, 0.5, 1.0), Descent(0.5))
    assert isnan(float(result.loss))


@pytest.mark.slow
def test_the_page_names_the_methods_that_perturb_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All others take the first gradient of every step at the local iterate."""
    points: list[torch.Tensor] = []

    class Watching(local.ObservedOracle):
        def _asked(self, grad, plain: str, with_loss: str, *at: torch.Tensor):
            if not self.calls:
                points.append(at[0])
            return super()._asked(grad, plain, with_loss, *at)

    def perturbs_first(method: Method) -> bool:
        seen: list[torch.Tensor] = []
        monkeypatch.setattr(type(method), "step", seeing(type(method).step, seen))
        points.clear()
        losses(simulation(method, executor="sequential", rounds=3))
        monkeypatch.undo()
        monkeypatch.setattr(local, "ObservedOracle", Watching)
        return not all(torch.equal(w, point) for w, point in zip(seen, points, strict=True))

    monkeypatch.setattr(local, "ObservedOracle", Watching)
    whole = {name: cls for name, cls in all_methods().items() if not cls.keeps_head}  # others step without the head
    found = [name for name, cls in whole.items() if perturbs_first(for_few_rounds(cls))]
    page = (Path(__file__).parents[2] / "docs" / "following.md").read_text()
    told = page.split("for all methods but ")[1].split(",\n  which")[0]
    assert sorted(re.split(", | and ", told)) == sorted(found)


def seeing(step, seen: list[torch.Tensor]):
    def watched(self, w: torch.Tensor, *rest):
        seen.append(w)
        return step(self, w, *rest)

    return watched
