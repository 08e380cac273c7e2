"""The tables of docs/guards.md say what was measured, and the file has what the recipes ask for."""

from __future__ import annotations

from pathlib import Path

from benchmarks import attacks
from benchmarks.attacks import Row, planned, read, write
from docs.measured_tables import attack_table, claims_table, guard_cost_table, method_table, worst_cost


def row(
    method: str, attack: str, share: int, guard: str, accuracy: float | None, seed: int = 0, recipe="attacks"
) -> Row:
    return Row(recipe, method, attack, share, guard, seed, accuracy, "" if accuracy else "refused")


ROWS = [
    row("FedAvg", "none", 0, "unguarded", 90.0), row("FedAvg", "none", 0, "unguarded", 80.0, seed=1),
    row("FedAvg", "none", 0, "clip", 88.0), row("FedAvg", "none", 0, "clip", 80.5, seed=1),
    row("FedAvg", "none", 0, "refuse", None), row("FedAvg", "sign-flip", 20, "unguarded", 10.0),
    row("FedAvg", "sign-flip", 20, "clip", None), row("FedCM", "sign-flip", 10, "refuse", 12.34),
    row("FedSAM", "claims", 30, "limited", 77.7, recipe="inflated-claims"),
]  # fmt: skip


def test_cells_are_means_over_seeds_or_say_what_happened() -> None:
    line = {tuple(found[:2]): found[2:] for found in attack_table(ROWS).rows}
    assert line["sign-flip", "FedAvg"] == ("–", "–", "–", "10.0", "refused", "–", "–", "–", "–")
    assert len(line) == 4, "the recipe's methods alone"
    assert method_table(ROWS).rows[1] == ("sign-flip", "FedCM", "–", "–", "12.3", *["–"] * 6)
    assert guard_cost_table(ROWS).rows == [("FedAvg", "85.0", "-0.8", "refused")]
    assert claims_table(ROWS).rows == [("FedSAM", *["–"] * 7, "77.7")]


def test_the_worst_cost_is_in_a_sentence() -> None:
    assert worst_cost(ROWS) == (
        "Of 2 pairs of method and guard 0 cost more than one point; the most is 0.8, FedAvg with `clip`. "
        "The guard ended the run of FedAvg with `refuse` (refused)."
    )
    assert worst_cost([]) == "Not measured yet."


def test_rows_come_back_as_they_were_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(attacks, "FILE", tmp_path / "rows.csv")
    write(ROWS)
    assert sorted(read(tmp_path / "rows.csv"), key=lambda one: one.key) == sorted(ROWS, key=lambda one: one.key)


def test_every_measured_row_is_one_of_the_plan_and_none_is_there_twice() -> None:
    keys = [one.key for one in read()]
    assert len(keys) == len(set(keys))
    assert set(keys) <= {one.key for one, _ in planned((0,))}
