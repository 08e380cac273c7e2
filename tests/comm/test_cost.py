"""Cost read off the records, against the papers' own tables."""

from __future__ import annotations

import pytest
import torch

from fedflat.comm.cost import gradients_per_step, method_cost, vector_cost
from fedflat.core.method import Method
from fedflat.methods import find


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [("FedAvg", 1, 1), ("FedSAM", 1, 1), ("MoFedSAM", 1, 2), ("FedGF", 1, 2), ("FedSMOO", 2, 2)],
)
def test_vectors_of_fedgf_table_3(name: str, up: int, down: int) -> None:
    cost = vector_cost(find(name)())
    assert (cost.up, cost.down) == (up, down)


@pytest.mark.parametrize(
    ("name", "backpropagations"),
    [("FedAvg", 1), ("FedSAM", 2), ("FedLESAM", 1), ("MoFedSAM", 2), ("FedSMOO", 2)],
)
def test_backpropagations_of_fedlesam_table_7(name: str, backpropagations: int) -> None:
    assert gradients_per_step(find(name)()) == backpropagations


def test_numbers_are_the_sizes_of_real_records(method: Method) -> None:
    d = 1000
    server = method.init_server(torch.zeros(d))
    down = method.broadcast(server)
    cost = method_cost(method, d)
    assert cost.server == sum(x.numel() for x in server.tensors().values())
    assert cost.down == sum(x.numel() for x in down.tensors().values())


def test_what_passes_within_a_round_is_not_kept() -> None:
    assert method_cost(find("FedSMOO")(), 10).client == 20
    assert sum(find("FedSMOO").client.widths(10).values()) == 30


def test_windows_and_scalars_are_counted_as_numbers_not_as_vectors() -> None:
    cost = method_cost(find("FedGF")(window=7), 10)
    assert (cost.down, cost.up, cost.server) == (21, 10, 28)
    assert vector_cost(find("FedGF")(window=7)).server == 2
