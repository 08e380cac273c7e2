"""Penultimate features against plain PyTorch, and a map that keeps separate what is separate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.objective import Objective
from fedflat.metrics.features import FeatureMap, feature_map, penultimate_features
from support.federation import federation, tanh_network
from support.files import refused


def blobs(samples: int = 90) -> ff.FederatedData:
    """Three classes of test samples around three far points."""
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 3
    return ff.FederatedData.from_clients([(rng.normal(size=(4, 6)), [0, 1, 2, 0])],
                                         test=(rng.normal(0, 0.3, (samples, 6)) + 8 * np.eye(6)[y], y))  # fmt: skip


def mapped(data: ff.FederatedData, network: nn.Module | None = None, **changes) -> FeatureMap:
    objective = Objective(tanh_network() if network is None else network)
    return feature_map(objective, objective.space.flatten(objective.module), data, **changes)


def test_features_are_what_the_last_linear_layer_gets_in_evaluation_mode() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3)).double()
    objective, data = Objective(network), federation(test=1500)  # more than fit into one batch
    w = 2 * objective.space.flatten(network)  # the flat vector counts, not what the module holds
    found = penultimate_features(objective, w, data.preparation, data.test[0], 3)
    expected = torch.tanh(2 * (data.test[0] @ network[0].weight.T + network[0].bias))
    torch.testing.assert_close(found, expected)
    assert not network[3]._forward_pre_hooks, "the module is left as it was"


@pytest.mark.parametrize("name", ["cnn", "resnet18-gn-cifar"])
def test_models_of_the_zoo_have_features(name: str) -> None:
    network = ff.models.build(name, classes=10, shape=(3, 32, 32))
    objective, x = Objective(network), torch.rand(2, 3, 32, 32)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    found = penultimate_features(objective, objective.space.flatten(network), torch.clone, x, 10)
    with torch.no_grad():
        torch.testing.assert_close(layers[-1](found), network.eval()(x))


@pytest.mark.slow
def test_the_map_keeps_separate_what_is_separate_and_repeats_itself() -> None:
    data = blobs()
    found = mapped(data)
    away = np.linalg.norm(found.points[:, None] - found.points[None], axis=2) + np.diag(np.full(90, np.inf))
    assert (found.classes[away.argmin(1)] == found.classes).mean() > 0.95
    np.testing.assert_array_equal(mapped(data).points, found.points)
    assert found.points.shape == (90, 2)
    assert "perplexity 30" in found.protocol
    assert "90 evenly spaced test samples" in found.protocol


def test_samples_are_evenly_spaced_and_as_many_as_asked_for() -> None:
    data = blobs(100)
    marked = replace(data, test=(data.test[0], torch.arange(100)), classes=100)
    network = nn.Sequential(nn.Linear(6, 100)).double()
    classes = mapped(marked, network, samples=40).classes
    assert len(classes) == 40
    assert classes[0] == 0
    assert set(np.diff(classes)) == {2, 3}, "steps of 2.5"


def test_what_has_no_features_is_refused() -> None:
    with refused("no test set"):
        mapped(replace(blobs(), test=None))
    with refused("more than 30 test samples, got 20"):
        mapped(federation(test=20))
    headless = nn.Sequential(nn.Linear(6, 5), nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten()).double()
    with refused("nn.Linear with 3 outputs", "Sequential"):
        mapped(blobs(), headless)
    dead = nn.Sequential(nn.Linear(6, 7), nn.Hardshrink(1e9), nn.Linear(7, 3)).double()
    with refused("the same for every test sample"):
        mapped(blobs(), dead)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kept, path = FeatureMap("FedAvg", rng.normal(size=(5, 2)), rng.integers(3, size=5), "how"), tmp_path / "map.npz"
    kept.save(path)
    found = FeatureMap.load(path)
    assert (found.label, found.protocol) == ("FedAvg", "how")
    np.testing.assert_array_equal(found.points, kept.points)
    np.testing.assert_array_equal(found.classes, kept.classes)
    path.write_bytes(b"nonsense")
    with refused("map.npz", "damaged"):
        FeatureMap.load(path)
