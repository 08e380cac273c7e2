"""A checkpoint continues with its own model and loss alone, and runs with other ones are distinguished."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core.errors import InputError

RNG = np.random.default_rng(0)
DATA = ff.FederatedData.split(RNG.normal(size=(60, 4)).astype("float32"), np.arange(60) % 3, clients=3, test=0.2)
smoothed = functools.partial(cross_entropy, reduction="none")


def net(activation: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), activation(), nn.Dropout(dropout), nn.Linear(8, 3))


def partly_frozen(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    base = nn.Linear(4, 4).requires_grad_(requires_grad=False)
    torch.manual_seed(0)
    return nn.Sequential(base, nn.Linear(4, 3))


def simulation(model: nn.Module | None = None, loss: Any = None, method: Any = None, seed: int = 0) -> ff.Simulation:
    return ff.Simulation(model or net(), DATA, method or ff.methods.FedAvg(), ff.Client(lr=0.1), rounds=2, loss=loss,
                         seed=seed, last=1, executor="sequential", workers=1)  # fmt: skip


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (lambda: simulation(net(nn.GELU)), r"the model is another one: it had ReLU\(\), now it has GELU\(\)$"),
        (lambda: simulation(net(dropout=0.5)), r"it had Dropout\(p=0\.0\), now it has Dropout\(\)$"),
        (lambda: simulation(loss=smoothed), r"loss was cross-entropy, now it is .*cross_entropy\(reduction='none'\)$"),
    ],
)
def test_a_checkpoint_of_another_model_or_loss_is_refused(other: Any, problem: str, tmp_path: Path) -> None:
    first = simulation()
    first.round()
    first.save(tmp_path / "state")
    simulation().load(tmp_path / "state")
    with pytest.raises(InputError, match=problem) as caught:
        other().load(tmp_path / "state")
    assert "\n" not in str(caught.value)


def test_a_loss_with_another_number_is_another_loss(tmp_path: Path) -> None:
    losses = [functools.partial(smoothed, label_smoothing=x) for x in (0.1, 0.9)]
    first = simulation(loss=losses[0])
    first.save(tmp_path / "state")
    simulation(loss=losses[0]).load(tmp_path / "state")
    with pytest.raises(InputError, match=r"label_smoothing=0\.1, .*, now it is .*label_smoothing=0\.9, "):
        simulation(loss=losses[1]).load(tmp_path / "state")


def test_a_frozen_part_with_other_numbers_is_another_model(tmp_path: Path) -> None:
    first = simulation(partly_frozen(1))
    first.save(tmp_path / "state")
    simulation(partly_frozen(1)).load(tmp_path / "state")
    with pytest.raises(InputError, match="base_hash was"):
        simulation(partly_frozen(2)).load(tmp_path / "state")


def own_method(factor: float) -> ff.methods.FedAvg:
    class Mine(ff.methods.FedAvg):
        """client  w <- w - lr g  server  w <- mean w."""

        def lr_factor(self, *given: Any) -> Any:
            return super().lr_factor(*given) * factor

    return Mine()


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("kinds", "labels"),
    [
        ([{"model": net()}, {"model": net(nn.GELU)}], ["FedAvg(layers=ReLU())", "FedAvg(layers=GELU())"]),
        ([{"loss": None}, {"loss": smoothed}],
         ["FedAvg(loss=cross-entropy)", "FedAvg(loss=torch.nn.functional.cross_entropy(reduction='none'))"]),
        ([{"model": net()}, {"model": net()}], ["FedAvg"]),
    ],
)  # fmt: skip
def test_runs_are_repetitions_only_with_one_model_and_loss(
    kinds: list[dict[str, Any]], labels: list[str], saved: bool, tmp_path: Path
) -> None:
    runs: list[Any] = [simulation(**kind, seed=seed).run() for seed, kind in enumerate(kinds)]
    if saved:
        for place, run in enumerate(runs):
            run.save(tmp_path / str(place))
        runs = [ff.load_run(tmp_path / str(place)) for place in range(len(runs))]
    rows = ff.compare(runs).rows
    assert [len(row.runs) for row in rows] == [2 // len(labels)] * len(labels)
    shown = [row.label for row in rows]
    assert shown == labels or [one.partition("…")[0] in two for one, two in zip(shown, labels, strict=True)]


@pytest.mark.parametrize(
    ("other", "reason"),
    [({"model": net(nn.GELU)}, "layers of the model"), ({"loss": smoothed}, "loss"),
     ({"model": net(dropout=0.5)}, "layers of the model")],
)  # fmt: skip
def test_a_method_is_not_paired_with_a_baseline_of_another_model_or_loss(other: dict[str, Any], reason: str) -> None:
    runs = [simulation().run(), simulation(**other, method=ff.methods.FedSAM()).run()]
    found = ff.compare(runs)
    assert [row.difference for row in found.rows] == [None, None]
    assert found.notes[0] == f"Not paired with {found.rows[0].label}, whose {reason} differ: {found.rows[1].label}."


def test_two_classes_of_one_name_are_two_methods() -> None:
    def run(factor: float, seed: int) -> ff.Run:
        return simulation(method=own_method(factor), seed=seed).run()

    rows = ff.compare([run(1.0, 0), run(0.5, 1), run(1.0, 1)], baseline="Mine").rows
    assert sorted(len(row.runs) for row in rows) == [1, 2]
    assert all("code=" in row.label for row in rows)


def test_a_loss_has_the_same_text_and_bits_in_executors_and_workers() -> None:
    def loss(s: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(s, y, reduction="none") ** 2

    runs = [ff.Simulation(net(), DATA, ff.methods.FedAvg(), rounds=1, loss=loss, executor=one, workers=1).run()
            for one in ("sequential", "stacked")]  # fmt: skip
    assert len({run.settings["loss"] for run in runs}) == len({run.settings["layers"] for run in runs}) == 1
