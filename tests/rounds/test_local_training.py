"""What clients are told about their local training."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch.optim import lr_scheduler

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.methods import find
from fedflat.rounds.schedule import PLANNED, Schedule
from support.federation import simulation
from support.studies import run_spec


def step_sizes(rounds: int = 6, **settings) -> list[float]:
    """Of all planned rounds, and of a round beyond them."""
    client = ff.Client(lr=0.5, **settings)
    return [client.lr_at(t, rounds) for t in range(rounds + 1)]


def test_the_step_size_decays_from_round_to_round() -> None:
    """lr decay^t: the first round, t = 0, has the step size that the user has written."""
    client = ff.Client(lr=0.5, lr_decay=0.8)
    assert step_sizes(lr_decay=0.8)[:3] == pytest.approx([0.5, 0.4, 0.32], rel=1e-15)
    assert client.descent(client.lr_at(2, 6)).lr == client.lr_at(2, 6)


def test_every_schedule_is_torchs() -> None:
    """Those of `torch.optim.lr_scheduler`, stepped once a round."""
    schedulers = {
        "constant": (lambda sgd: lr_scheduler.ConstantLR(sgd, factor=1.0), {}),
        "exponential": (lambda sgd: lr_scheduler.ExponentialLR(sgd, 0.8), {"lr_decay": 0.8}),
        "step": (lambda sgd: lr_scheduler.StepLR(sgd, 2, gamma=0.3), {"lr_decay": 0.3, "step_rounds": 2}),
        "cosine": (lambda sgd: lr_scheduler.CosineAnnealingLR(sgd, 6, eta_min=0.1), {"lr_end": 0.1}),
        "linear": (lambda sgd: lr_scheduler.LinearLR(sgd, 1.0, 0.2, total_iters=6), {"lr_end": 0.1}),
    }
    assert set(schedulers) == set(get_args(Schedule))
    for name, (make, settings) in schedulers.items():
        sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        scheduler, expected = make(sgd), []
        for _ in range(6):
            expected.append(scheduler.get_last_lr()[0])
            sgd.step()
            scheduler.step()
        assert step_sizes(schedule=name, **settings)[:6] == pytest.approx(expected, rel=1e-12), name


def test_a_schedule_of_planned_rounds_stays_at_its_last_round() -> None:
    """Also where it ends at 0: what is measured after the last round divides by step sizes."""
    for name in PLANNED:
        found = step_sizes(schedule=name)
        assert found[6] == found[5] > 0


def test_a_warm_up_rises_to_the_step_size_and_then_the_schedule_begins() -> None:
    assert step_sizes(warmup=2, schedule="constant") == pytest.approx([0.5 / 3, 1 / 3, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert step_sizes(warmup=2, schedule="cosine")[2:] == pytest.approx(step_sizes(rounds=4, schedule="cosine"))
    with pytest.raises(InputError, match="warmup = 6 rounds are not fewer than rounds = 6"):
        simulation(find("FedAvg")(), rounds=6, client={"lr_decay": 1.0, "warmup": 6})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedule": "constant", "lr_decay": 0.9},
            "client.lr_decay = 0.9 is not used by client.schedule = 'constant'",
        ),
        ({"schedule": "cosine", "lr_decay": 0.9}, "client.lr_decay = 0.9 is not used by"),
        ({"lr_end": 0.01}, "client.lr_end = 0.01 is not used by .*'cosine' and 'linear'"),
        ({"step_rounds": 3}, "client.step_rounds = 3 is not used by"),
        ({"schedule": "step", "lr_decay": 0.9}, "needs client.step_rounds"),
        ({"schedule": "linear", "lr_end": 0.6}, "client.lr_end = 0.6 is more than client.lr = 0.5"),
        ({"schedule": "cosin"}, "Client.schedule must be one of"),
        ({"optimizer": "adamw", "momentum": 0.9}, "client.momentum = 0.9 is not used by client.optimizer = 'adamw'"),
        ({"optimizer": "adamw", "wd_scope": "inside"}, "client.wd_scope = 'inside' is not used"),
        ({"beta1": 0.5}, "client.beta1 = 0.5 is not used by client.optimizer = 'sgd'"),
        ({"optimizer": "adamw", "beta2": 1.0}, "must be less than 1"),
        ({"optimizer_state": "kept"}, "sgd without client.momentum has no state"),
        ({"accumulate": 2}, "client.accumulate = 2 needs client.batch_size"),
    ],
)
def test_settings_that_nothing_uses_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ff.Client(lr=0.5, **settings)


def test_a_schedule_of_planned_rounds_makes_a_run_depend_on_them(tmp_path: Path) -> None:
    """So a checkpoint is not continued with other step sizes than it was begun with."""
    short = simulation(find("FedAvg")(), rounds=3, client={"lr_decay": 1.0, "schedule": "cosine"})
    short.round()
    short.save(tmp_path / "state.safetensors")
    longer = simulation(find("FedAvg")(), rounds=4, client={"lr_decay": 1.0, "schedule": "cosine"})
    with pytest.raises(InputError, match="depends on the number of rounds, which was 3 and is 4"):
        longer.load(tmp_path / "state.safetensors")
    spec = run_spec(client={"lr": 0.1, "schedule": "linear"})
    assert spec.planned_by_rounds() == "the schedule of client.lr"
    assert run_spec().planned_by_rounds() is None


def test_settings_of_before_have_the_digest_of_before() -> None:
    """A folder's name has the digest of its settings, which fields with their defaults do not change."""
    assert not {f.name for f in fields(ff.Client) if f.metadata["later"]} & set(run_spec().decisive()["client"])
    assert run_spec(client={"optimizer": "adamw"}).decisive()["client"]["optimizer"] == "adamw"
    assert (
        run_spec(client={"warmup": 1}).digest()
        != run_spec(client={"warmup": 0}).digest()
        == run_spec(client={}).digest()
    )
