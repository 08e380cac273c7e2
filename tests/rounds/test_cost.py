"""Cost read off the records, against the papers' own tables."""

from __future__ import annotations

import pytest
import torch

from fedflat.core.method import Method
from fedflat.methods import find
from fedflat.rounds.cost import full_passes_per_round, gradients_per_step, method_cost, vector_cost

FEDGF_TABLE_3 = {  # vectors up and down per client and round
    "FedAvg": (1, 1), "FedSAM": (1, 1), "MoFedSAM": (1, 2), "FedGF": (1, 2), "FedSMOO": (2, 2), "FedGAMMA": (2, 2),
}  # fmt: skip
FEDLESAM_TABLE_7 = {  # backpropagations per step, vectors stored by a client
    "FedAvg": (1, 1), "FedSAM": (2, 1), "FedLESAM": (1, 2), "MoFedSAM": (2, 2), "FedSMOO": (2, 4), "FedLESAM_D": (1, 4),
    "FedGAMMA": (2, 3), "FedLESAM_S": (1, 4),
}  # fmt: skip
TOTAL = {  # vectors both ways per client and round (methods of the five papers and around them)
    "FedAvg": 2, "FedProx": 2, "FedSAM": 2, "FedASAM": 2, "FedAvgM": 2, "FedAdam": 2, "FedYogi": 2, "FedAdagrad": 2,
    "Scaffold": 4, "FedGAMMA": 4, "FedDyn": 2, "FedSpeed": 2, "FedCM": 3, "MoFedSAM": 3, "FedACG": 2, "MimeLite": 4,
    "FedRobust": 2, "FedSMOO": 4, "FedLESAM": 2, "FedLESAM_S": 4, "FedLESAM_D": 2, "FedGF": 3, "FedVSSAM": 3,
    "FedGloSS": 2, "FedGMT": 3, "FedSWA": 2, "FedMoSWA": 4, "FedNSAM": 3, "FedSOL": 2, "FedExP": 2, "FedInit": 2,
    "FedTOGA": 3, "FedAdamW": 5, "FedMuon": 5, "FedFSA": 3, "Ditto": 2, "FedRep": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", FEDGF_TABLE_3)
def test_vectors_of_fedgf_table_3(name: str) -> None:
    cost = vector_cost(find(name)())
    assert (cost.up, cost.down) == FEDGF_TABLE_3[name]


@pytest.mark.parametrize("name", FEDLESAM_TABLE_7)
def test_backpropagations_and_storage_of_fedlesam_table_7(name: str) -> None:
    """The table gives FedLESAM-D one vector more than its Algorithm 4 stores (the server's dual, which is not sent)."""
    gradients, stored = FEDLESAM_TABLE_7[name]
    assert gradients_per_step(find(name)()) == gradients
    assert vector_cost(find(name)()).stored == stored - (name == "FedLESAM_D")


@pytest.mark.parametrize("name", TOTAL)
def test_vectors_both_ways(name: str) -> None:
    cost = vector_cost(find(name)())
    assert cost.down + cost.up == TOTAL[name]


def test_fedwmsam_sends_one_vector_more_than_a_server_that_holds_all_variates() -> None:
    cost = vector_cost(find("FedWMSAM")())
    assert (cost.down, cost.up, cost.client) == (3, 1, 1)


def test_options_cost_what_they_need() -> None:
    gu = find("FedVSSAM")(gamma_l=1.0, gamma_g=0.5)
    assert vector_cost(gu).down == 1, "GU's clients are FedSAM's"
    assert vector_cost(find("FedVSSAM")(gamma_search=0.5, gamma_l=1.0)).down == 2
    assert vector_cost(find("FedWMSAM")(correction=False)).down == 2


def test_the_papers_rounds_to_cost_follow_from_their_multipliers() -> None:
    """FedSMOO Table 3: rounds to the target over FedAvg's 723, times the multiplier."""
    table = {"Scaffold": (533, 1.47), "FedCM": (442, 1.22), "FedDyn": (424, 0.59), "FedSAM": (604, 0.84)}
    table |= {"MoFedSAM": (298, 0.82), "FedSMOO": (194, 0.53)}
    for name, (rounds, printed) in table.items():
        assert rounds / 723 * find(name).sources.charged == pytest.approx(printed, abs=0.011), name


def test_full_passes() -> None:
    assert full_passes_per_round(find("MimeLite")()) == 1
    assert full_passes_per_round(find("FedAvg")()) == 0


def test_numbers_are_the_sizes_of_real_records(method: Method) -> None:
    d = 1000
    server = method.init_server(torch.zeros(d))
    down = method.broadcast(server)
    cost = method_cost(method, d)
    assert cost.server == sum(x.numel() for x in server.tensors().values())
    assert cost.down == sum(x.numel() for x in down.tensors().values())


def test_what_passes_within_a_round_is_not_kept() -> None:
    assert method_cost(find("FedSMOO")(), 10).client == 20
    assert sum(find("FedSMOO").client.widths(10, find("FedSMOO")()).values()) == 30


def test_windows_and_scalars_are_counted_as_numbers_not_as_vectors() -> None:
    cost = method_cost(find("FedGF")(window=7), 10)
    assert (cost.down, cost.up, cost.server) == (21, 10, 28)
    assert vector_cost(find("FedGF")(window=7)).server == 2
