from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedflat.core.objective import Objective
from fedflat.metrics import accuracy
from fedflat.metrics.accuracy import drift, per_client, score, spread
from support.federation import federation, tanh_network


def test_scores_are_plain_pytorchs_in_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = tanh_network(), federation()
    objective = Objective(network)
    monkeypatch.setattr(accuracy, "SAMPLES_AT_ONCE", 7)
    scores = score(objective, objective.space.flatten(network), data.x, data.y)
    logits = network(data.x).detach()
    assert scores.accuracy == pytest.approx(float((logits.argmax(1) == data.y).double().mean()))
    assert scores.mean_loss == pytest.approx(float(cross_entropy(logits, data.y)))


def test_accuracy_per_client_is_that_of_its_own_samples() -> None:
    network, data = tanh_network(), federation()
    objective = Objective(network)
    each = per_client(score(objective, objective.space.flatten(network), data.x, data.y), data)
    expected = []
    for i in range(data.clients):
        x, y = data.client(i)
        expected.append(float((network(x).argmax(1) == y).double().mean()))
    assert each == pytest.approx(expected)
    s = spread(each)
    assert (s["mean"], s["std"], s["worst"], s["best"]) == pytest.approx(
        (np.mean(expected), np.std(expected), min(expected), max(expected))
    )


def test_drift_is_a_length() -> None:
    assert drift(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2)).tolist() == [5, 0]
