"""Metrics beside the accuracy, by their definitions, and where runs and pages have them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.run_directory import StoredRun
from fedflat.methods import FedAvg, find
from fedflat.metrics.classification import METRICS, Collector
from support.federation import federation, simulation
from support.studies import run_spec

ALL = [name for name in METRICS if name != "auc"]


def found(names: list[str], scores: torch.Tensor, y: torch.Tensor, size: int = 3) -> dict[str, float]:
    """The metrics of scores (n, k), collected in batches."""
    collector = Collector(names, [f"c{i}" for i in range(scores.shape[-1])])
    for some, some_y in zip(torch.split(scores, size), torch.split(y, size), strict=True):
        collector.add(some, some_y)
    return collector.values()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_recall_f1_and_balanced_accuracy_are_counts(pairs: list[tuple[int, int]]) -> None:
    """From the hits, samples and predictions of each class; a class that does not occur has no recall."""
    y, predicted = (np.array(some) for some in zip(*pairs, strict=True))
    scores = torch.eye(4)[torch.from_numpy(predicted)]
    values = found(["recall", "macro-f1", "balanced-accuracy"], scores, torch.from_numpy(y))
    recalls, f1 = {}, []
    for c in range(4):
        hits, samples, said = (int(x.sum()) for x in ((y == c) & (predicted == c), y == c, predicted == c))
        if samples:
            recalls[f"recall/c{c}"] = hits / samples
        if samples or said:
            f1.append(2 * hits / (samples + said))
    assert {name: value for name, value in values.items() if "/" in name} == pytest.approx(recalls)
    assert values["macro_f1"] == pytest.approx(np.mean(f1))
    assert values["balanced_accuracy"] == pytest.approx(np.mean(list(recalls.values())))


@given(st.lists(st.tuples(st.floats(-3, 3), st.booleans()), min_size=1, max_size=20))
def test_auc_is_the_chance_to_rank_a_pair_right(samples: list[tuple[float, bool]]) -> None:
    """Of a sample of class 1 and one of class 0; a tie counts half. With one class alone there is none."""
    margin, y = torch.tensor([m for m, _ in samples]), torch.tensor([int(c) for _, c in samples])
    values = found(["auc"], torch.stack([torch.zeros_like(margin), margin], dim=1), y)
    m = margin.tolist()
    pairs = [(m[i], m[j]) for i, j in product(range(len(m)), repeat=2) if y[i] == 1 and y[j] == 0]
    if not pairs:
        assert values == {}
    else:
        assert values["auc"] == pytest.approx(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs))


def test_the_calibration_error_is_that_of_bins() -> None:
    """Confidences in one bin: their mean against the share of hits. Each in its own bin: the mean distance."""
    p = torch.tensor([0.61, 0.62, 0.63, 0.64, 0.65])
    scores = torch.stack([p, 1 - p], dim=1).log()
    y = torch.tensor([0, 0, 1, 0, 1])
    assert found(["calibration-error"], scores, y)["calibration_error"] == pytest.approx(0.63 - 0.6, abs=1e-6)
    p = torch.tensor([0.55, 0.75, 0.95])
    scores, y = torch.stack([p, 1 - p], dim=1).log(), torch.tensor([0, 1, 0])
    expected = (0.45 + 0.75 + 0.05) / 3
    assert found(["calibration-error"], scores, y)["calibration_error"] == pytest.approx(expected, abs=1e-6)


def test_a_sure_classifier_is_off_by_its_error() -> None:
    scores, y = 1e4 * torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 0, 1])
    assert found(["calibration-error"], scores, y)["calibration_error"] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["FedAvg", "Local"])
def test_every_round_has_them(name: str) -> None:
    """Of clients that train alone, the mean over clients."""
    sim = simulation(find(name)(), rounds=2, metrics=ALL)
    for _ in sim:
        pass
    row = sim.history[-1]
    assert {"test_recall/0", "test_macro_f1", "test_balanced_accuracy", "test_calibration_error"} <= set(row)
    if name == "FedAvg":
        y, scores = sim.data.test[1], sim.predict(sim.data.test[0])
        assert row["test_macro_f1"] == pytest.approx(found(["macro-f1"], scores, y)["macro_f1"])
        assert sim.result().summary["test_macro_f1_last"] == row["test_macro_f1"]


def test_a_run_in_a_folder_has_them(tmp_path: Path) -> None:
    runner.run(run_spec(rounds=2, metrics=["macro-f1", "recall"], flatness=[]), tmp_path / "run")
    stored = StoredRun.open(tmp_path / "run")
    assert 0 <= stored.summary["test_macro_f1_last"] <= 1
    assert stored.metrics["test_recall/3"].to_pylist()[-1] == stored.summary["test_recall/3_last"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": ["f1"]}, "metrics: 'f1' is unknown; known are recall, macro-f1"),
        ({"metrics": "recall"}, "metrics must be a list of names"),
        ({"metrics": ["auc"]}, "auc is for two classes, and there are 3"),
    ],
)
def test_what_there_is_not_is_refused(settings: dict, message: str) -> None:
    assert federation().classes == 3
    with pytest.raises(InputError, match=message):
        simulation(FedAvg(), **settings)


def test_a_regression_has_its_own() -> None:
    data = ff.FederatedData.from_clients([(np.ones((4, 2)), np.ones(4))], task="regression")
    with pytest.raises(InputError, match="metrics: recall is for classes, and the task is regression"):
        ff.Simulation("mlp", data, FedAvg(), metrics=["recall"])
