from __future__ import annotations

import numpy as np
import pytest
import torch

import fedflat as ff
from support.federation import federation, tanh_network


def test_spread_over_clients_against_plain_pytorch() -> None:
    network, data = tanh_network(), federation()
    with torch.no_grad():
        pairs = [data.client(i) for i in range(data.clients)]
        each = [float((network(x).argmax(1) == y).double().mean()) for x, y in pairs]
    found = ff.flatness(network, data, ["client-accuracy"])
    assert {name: x.value for name, x in found.items()} == pytest.approx({
        "client_accuracy_mean": np.mean(each),
        "client_accuracy_std": np.sqrt(np.mean((np.array(each) - np.mean(each)) ** 2)),
        "client_accuracy_worst": min(each),
        "client_accuracy_best": max(each),
        "client_accuracy_worst_tenth": min(each),  # of fewer than ten clients
    })  # fmt: skip
    assert len(set(each)) > 2


def test_all_samples_count_and_it_says_so() -> None:
    data = federation()
    one, other = (ff.flatness(tanh_network(), data, ["client-accuracy"], max_samples=n) for n in (3, 2000))
    assert one == other
    assert one.findings[0].protocol.endswith("all 38 training samples")
