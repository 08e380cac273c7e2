"""Local optimisers and accumulated gradients in whole rounds, against loops of plain PyTorch."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.methods import FedAvg, FedGMT, FedSAM, MimeLite, find
from support.effort import chosen, covering_methods, for_few_rounds, in_turns, skip_refused
from support.federation import federation, simulation, tanh_network, whole_and_resumed

SIZES = (12, 8, 16)
ADAMW = {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}


def trained(method: Method, **changes) -> ff.Simulation:
    client = {"lr_decay": 1.0, "epochs": 3, "batch_size": None} | changes.pop("client", {})
    settings = {"data": federation(SIZES), "participation": 1.0, "workers": 1, "executor": "sequential"} | changes
    sim = simulation(method, client=client, **settings)
    for _ in sim:
        pass
    return sim


def plain_rounds(rho: float, kept: bool, rounds: int = 4) -> nn.Module:
    """Federated averaging of AdamW, with or without SAM, full batches and three steps; by hand."""
    data, model = federation(SIZES), tanh_network()
    optimisers: list[dict | None] = [None] * len(SIZES)
    for _ in range(rounds):
        ends = []
        for i in range(len(SIZES)):
            (x, y), local = data.client(i), deepcopy(model)
            adamw = torch.optim.AdamW(local.parameters(), lr=0.02, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6)
            if kept and optimisers[i] is not None:
                adamw.load_state_dict(optimisers[i])
            for _ in range(3):
                before = deepcopy(local.state_dict())
                cross_entropy(local(x), y).backward()
                if rho:
                    norm = torch.cat([p.grad.flatten() for p in local.parameters()]).norm()
                    with torch.no_grad():
                        for p in local.parameters():
                            p.add_(rho * p.grad / norm)
                    local.zero_grad()
                    cross_entropy(local(x), y).backward()
                    local.load_state_dict(before)
                adamw.step()
                local.zero_grad()
            optimisers[i] = adamw.state_dict()
            ends.append(local.state_dict())
        model.load_state_dict({name: sum(end[name] for end in ends) / len(ends) for name in ends[0]})
    return model


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_adamw_is_torchs(rho: float, kept: bool) -> None:
    client = ADAMW | {"optimizer_state": "kept" if kept else "zero"}
    sim = trained(FedSAM(rho=rho), client=client)
    expected = nn.utils.parameters_to_vector(plain_rounds(rho, kept).parameters()).detach()
    # The norm in a perturbation has 1e-12 added to it.
    torch.testing.assert_close(sim.w, expected, rtol=0, atol=1e-11 if rho else 1e-13)


OPTIMISERS = {
    "adamw": {"optimizer": "adamw", "lr": 0.01},
    "adamw, kept": {"optimizer": "adamw", "lr": 0.01, "optimizer_state": "kept"},
    "momentum, kept": {"momentum": 0.8, "optimizer_state": "kept"},
}


@pytest.mark.parametrize(("name", "optimiser"), in_turns(covering_methods(), list(OPTIMISERS)))
def test_executors_agree(name: str, optimiser: str) -> None:
    """Also for clients with uneven numbers of steps, which leave the stack one after another."""
    method = for_few_rounds(find(name))
    client = OPTIMISERS[optimiser] | {"batch_size": 4, "max_norm": 1.0, "weight_decay": 0.01}
    skip_refused(lambda: simulation(method, client=client))
    one, many = (trained(method, client=client, executor=executor).w for executor in ("sequential", "stacked"))
    torch.testing.assert_close(many, one, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures(*chosen(["traced"], []))
def test_a_compiled_step_has_the_state_of_the_optimiser() -> None:
    client = OPTIMISERS["adamw, kept"] | {"batch_size": 4}
    one, compiled = (trained(FedSAM(), client=client, executor=executor) for executor in ("sequential", "compiled"))
    assert compiled.executor.step.works
    torch.testing.assert_close(compiled.w, one.w, rtol=1e-11, atol=1e-12)


KEPT = [name for name in OPTIMISERS if "kept" in name]


@pytest.mark.parametrize(("name", "optimiser"), in_turns(covering_methods(), KEPT))
def test_a_kept_state_is_resumed_to_the_same_bits(name: str, optimiser: str, tmp_path: Path) -> None:
    """With parts that stay, the state covers them, too."""
    settings = {
        "data": federation(SIZES),
        "participation": 2,
        "workers": 1,
        "executor": "sequential",
        "keep": ["2.bias"],
    }
    method, client = for_few_rounds(find(name)), {"lr_decay": 1.0, "batch_size": 4} | OPTIMISERS[optimiser]
    skip_refused(lambda: simulation(method, client=client, **settings))
    whole, resumed = whole_and_resumed(lambda: simulation(method, client=client, **settings), 3, tmp_path)
    assert torch.equal(resumed.w, whole.w)
    other = simulation(method, client=client | {"optimizer_state": "zero"}, **settings)
    for _ in other:
        pass
    assert not torch.equal(other.w, whole.w), "or nothing was kept"


@pytest.mark.usefixtures("forked_processes")
def test_workers_keep_the_state() -> None:
    client = OPTIMISERS["adamw, kept"] | {"batch_size": 4}
    one, two = (trained(FedSAM(), client=client, workers=workers) for workers in (1, 2))
    two.close()
    assert torch.equal(one.w, two.w)


def test_a_kept_state_is_a_part_of_a_clients_cost() -> None:
    sim = trained(FedAvg(), client=OPTIMISERS["adamw, kept"], rounds=1)
    assert sim.result().cost.client == 2 * len(sim.w) + 1


class Dropping(nn.Module):
    """With dropout: each part of a batch needs masks of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.dropout(torch.tanh(self.first(x)), 0.5, self.training))


METHODS = {"FedAvg": FedAvg(), "FedSAM": FedSAM(), "FedGMT": FedGMT(), "MimeLite": MimeLite(),
           "FedSOL": find("FedSOL")(rho=0.3)}  # fmt: skip


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_accumulated_batches_are_one_large_batch(name: str, executor: str) -> None:
    """Up to rounding; the last batch of a client is short, and so are its parts."""
    large, parts = (trained(METHODS[name], client=client, executor=executor) for client in
                    ({"batch_size": 6}, {"batch_size": 2, "accumulate": 3}))  # fmt: skip
    torch.testing.assert_close(parts.w, large.w, rtol=1e-11, atol=1e-12)
    assert parts.history[-1]["train_loss"] == pytest.approx(large.history[-1]["train_loss"])
    assert parts.history[-1]["gradients"] == large.history[-1]["gradients"]


def test_each_part_draws_its_own_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(FedAvg(), model=Dropping().double(), data=federation((8,)), participation=1, workers=1,
                     executor="sequential", client={"batch_size": 2, "accumulate": 4})  # fmt: skip
    executor = sim.executor
    plan = executor.batches.plan(0, sim.cohort(0))
    oracle = executor._oracle(plan.samples[0, 0], plan, 1, 0)
    keys = [int(part.batch.key) for part in oracle.parts]
    assert len(set(keys)) == 4
    alone = simulation(FedAvg(), model=Dropping().double(), data=federation((8,)), participation=1, workers=1,
                       executor="sequential", client={"batch_size": 8}).executor  # fmt: skip
    assert int(alone._oracle(plan.samples[0, 0], plan, 1, 0).batch.key) == keys[0]


def test_steps_in_parts_are_not_compiled() -> None:
    with pytest.raises(InputError, match="executor = 'compiled' prepares steps of one batch"):
        trained(FedAvg(), client={"batch_size": 2, "accumulate": 2}, executor="compiled")
