"""What a paper prints besides accuracies, as lines above ours."""

from __future__ import annotations

import fedflat as ff
from fedflat.experiments.recipe import Published
from fedflat.reports.published import line_of, published_lines
from support.finished_runs import Fake

RUNS = [Fake("FedAvg", 0, [0.2, 0.75, 0.9]), Fake("FedSAM", 0, [0.2, 0.3, 0.5]), Fake("FedCM", 0, [0.9, 0.9, 0.9])]


def lines(*published: Published, targets: tuple[float, ...] = (0.74,)) -> dict[str, list[str]]:
    comparison = ff.compare(RUNS, targets=targets, published=published)
    return published_lines(comparison)


def test_rounds_to_a_target_stand_above_ours_and_why_there_are_none_is_told() -> None:
    numbers = {"values": {"FedAvg": 723}, "absent": {"FedSAM": "not reached"}}
    assert lines(Published(quantity="rounds to 74 %", where="Table 3", **numbers)) == {
        "rounds to 74 %: paper, Table 3": ["723", "not reached", "–"],
        "rounds to 74 %: ours": ["2 (1/1)", "–", "1 (1/1)"],
    }


def test_rounds_to_another_target_are_not_ours() -> None:
    found = lines(Published(quantity="rounds to 68 %", where="Table 3", values={"FedAvg": 246}))
    assert list(found) == ["rounds to 68 %: paper, Table 3"]


def test_what_is_relative_to_fedavg_is_ours_in_fedavgs() -> None:
    """FedAvg needs two rounds, FedCM one, in which it sends 1.5 times as much."""
    found = lines(
        *(Published(quantity=f"{what} to 74 %, relative to FedAvg", where="Table 5", values={"FedAvg": 1, "FedCM": 0.5})
          for what in ("rounds", "communication", "minutes"))
    )  # fmt: skip
    assert {title: cells for title, cells in found.items() if "ours" in title} == {
        "rounds to 74 %, relative to FedAvg: ours": ["1.00", "–", "0.50"],
        "communication to 74 %, relative to FedAvg: ours": ["1.00", "–", "0.50"],
    }


def test_a_quantity_of_two_tables_has_a_line_of_each_and_one_of_ours() -> None:
    quantity = "training accuracy over clients %"
    both = [Published(quantity=quantity, where=where, values={"FedAvg": [95.07, 0.94]}) for where in ("T 1", "T 4")]
    assert lines(*both) == {
        f"{quantity}: paper, T 1": ["95.07 ± 0.94", "–", "–"],
        f"{quantity}: ours": ["70 ± 10"] * 3,
        f"{quantity}: paper, T 4": ["95.07 ± 0.94", "–", "–"],
    }


def test_test_accuracies_are_in_the_main_table() -> None:
    assert lines(Published(quantity="test accuracy %", where="Table 1", values={"FedAvg": 76})) == {}


def test_zeros_at_the_end_are_printed_as_the_paper_does() -> None:
    """TOML reads 76.00 as 76."""
    values = {"FedAvg": [76.00, 0.18], "FedSAM": [76.86, 0.50], "FedCM": 77.8}
    numbers = Published(quantity="test accuracy %", where="Table 1", values=values)
    assert line_of(numbers).endswith(": FedAvg 76.00 ± 0.18, FedSAM 76.86 ± 0.50, FedCM 77.80")
    rounds = Published(quantity="rounds to 74 %", where="Table 6", values={"FedAvg": 650, "FedSAM": 400})
    assert line_of(rounds).endswith(": FedAvg 650, FedSAM 400")


def test_no_printed_digit_is_lost() -> None:
    found = lines(Published(quantity="seconds to 74 %", where="Table 7", values={"FedAvg": 14246.51}))
    assert found == {"seconds to 74 %: paper, Table 7": ["14246.51", "–", "–"]}
