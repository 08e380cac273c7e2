"""The code of the second study's plan: its grid, its choice, and the data that its clients hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "studies" / "gap-and-flatness"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import the study's programs as they import each other, and forget them afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("sets", "run"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module("run")
    yield module
    for name in ("sets", "run"):
        sys.modules.pop(name, None)


def test_every_study_of_the_plan_can_be_built(run: ModuleType, tmp_path: Path) -> None:
    for lr in run.STEP_SIZES:
        some = [one for one in run.GRID if one.lr == lr]
        spec = run.settings(tmp_path, 1000, some)
        assert len(spec.runs()) == len(some) == 3 + 4 * 4
        twice = run.settings(tmp_path, 0, some[:3], rounds=300)
        assert twice.client.lr_decay**300 == pytest.approx(spec.client.lr_decay**150), "the same last step size"
    assert len(run.GRID) == len(set(run.GRID))


def test_the_best_configuration_and_what_lies_beyond_an_end(run: ModuleType) -> None:
    one, other = run.Configuration("FedSAM", 0.1, 0.06), run.Configuration("FedSAM", 0.02, 0.12)
    assert run.best({one: 0.8, other: 0.8}, "FedSAM") == other, "on a tie the smaller radius"
    assert run.best({one: 0.8, other: 0.9}, "FedSAM", lr=0.06) == one
    assert run.beyond(one) == []
    assert run.beyond(run.Configuration("FedAvg", 0.0, 0.24)) == [run.Configuration("FedAvg", 0.0, 0.48)]
    low, high = run.beyond(run.Configuration("FedSAM", 0.5, 0.03))
    assert (low.lr, low.rho) == (pytest.approx(0.015), 0.5)
    assert (high.lr, high.rho) == (0.03, pytest.approx(2.5))


def test_few_are_a_tenth_of_each_client_with_its_shares_of_the_classes(run: ModuleType) -> None:
    sets, rng = sys.modules["sets"], np.random.default_rng(0)
    y = rng.integers(10, size=25_000)
    for part in sets.clients_of(y, rng):
        tenth = sets.tenth_of(part, y, rng)
        assert (len(part), len(tenth), len(set(tenth.tolist()))) == (400, 40, 40)
        assert set(tenth.tolist()) <= set(part.tolist())
        counts = [np.bincount(y[samples], minlength=10) for samples in (part, tenth)]
        assert np.abs(counts[0] / 10 - counts[1]).max() < 1
