from __future__ import annotations

import pytest

from benchmarks.implementations import Bare, Ours
from benchmarks.parts import chosen, part_names, parts
from benchmarks.workloads import WORKLOADS
from support.files import refused

W1, W3 = WORKLOADS["W1"], WORKLOADS["W3"]


@pytest.mark.parametrize("quick", [False, True])
def test_names_are_unique_within_a_part(quick: bool) -> None:
    for part in parts(quick).values():
        names = [one.name for one in part.implementations]
        assert len(names) == len(set(names))
        assert all(part.implementation(name).name == name for name in names)


def test_names_say_what_is_special() -> None:
    assert Ours(W1, "FedAvg").name == "FedAvg"
    assert Ours(W1, "FedSAM", "bf16").name == "FedSAM bf16"
    assert Ours(W1, "FedAvg", whole=True).name == "FedAvg whole"
    assert Ours(W1, "FedAvg", whole=True, workers=2).name == "FedAvg 2 workers"
    assert Ours(W1, "FedAvg", whole=True, tested=True).name == "FedAvg tested"
    assert [Bare(W1, *how).name for how in ((False, False), (False, True), (True, True))] == [
        "bare-default", "bare-tuned", "bare-best",
    ]  # fmt: skip


def test_only_the_plain_loop_as_it_is_has_the_allocator_as_it_is() -> None:
    apart = {one.name for part in parts(False).values() for one in part.implementations if not one.tuned}
    assert apart == {"bare-default"}


def test_processor_seconds_are_told_of_one_process_only() -> None:
    assert Ours(W1, "FedAvg").processor
    assert not Ours(W1, "FedAvg", workers=2).processor


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_rounds_are_those_of_the_work_and_seconds_those_of_one_with_all_clients() -> None:
    prepared = Ours(W3, "FedAvg").prepare()
    assert prepared.share == W3.rounds
    assert prepared.facts["clients timed"] == 10
    assert Bare(WORKLOADS["W5"], False, False).prepare().share == 100 / 10_000


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_a_simulation_trains_the_clients_that_are_timed_and_is_not_evaluated() -> None:
    sim = Ours(W3, "FedSAM").simulation(4)
    result = sim.round()
    assert result.metrics["clients"] == 4
    assert result.metrics["gradients"] == 4 * 10 * 2
    assert "test_accuracy" not in result.metrics


def test_parts_are_chosen_by_name_and_measured_in_order() -> None:
    assert chosen(["store", "W2"]) == ["W2", "store"]
    assert chosen([]) == part_names()
    with refused("'W9'", "W4p", "augmentation"):
        chosen(["W2", "W9"])
