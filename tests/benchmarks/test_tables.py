from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from benchmarks.measurement import Measurement, Spread
from benchmarks.results import Results, Settings, described
from benchmarks.tables import (
    circumstances,
    joined_days,
    other_frameworks_table,
    peers_table,
    seconds,
    target_table,
    target_table_of_days,
    times_table,
    vectors_table,
)  # fmt: skip
from benchmarks.targets import Plain, Ratio, Target

MOMENT = {"load": 0.5}
OTHER = {"peer": "Other", "version": "7", "method": "FedAvg", "includes": "no augmentation", "scaled": None}
RESULTS = Results(
    described(Settings()),
    {"W": {"begin": MOMENT, "end": MOMENT}},
    [
        Measurement("W", "ours", [1.0, 1.1, 0.9], [1.0, 1.0, 1.0], facts={"executor": "Stacked", "clients timed": 10}),
        Measurement("W", "theirs", [2.0, 2.2, 2.7], [2.0, 2.0, 2.0]),
        Measurement("W", "workers", [], [0.5, 0.5, 0.5]),
        Measurement("W", "Other FedAvg", [4.0], [4.0], alone=True, facts=OTHER),
        Measurement("store", "read", [0.02], [0.03]),
        Measurement("W1 vectors", "backprop", [0.1], [0.1]),
        Measurement("W1 vectors", "vectors FedAvg", [0.002], [0.002]),
    ],
)  # fmt: skip
RATIO = Ratio(("W", "ours"), ("W", "theirs"))
AT_MOST = Target(1, "W", RATIO, 0.6, 0.55)


MISSING = replace(AT_MOST, quantity=Ratio(("W", "ours"), ("W", "nobody")))


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (AT_MOST, "goal"),
        (replace(AT_MOST, stretch=0.45), "target"),
        (replace(AT_MOST, target=0.5, stretch=None), "target"),
        (replace(AT_MOST, target=0.4), "no"),
        (MISSING, "not measured"),
    ],
)
def test_a_target_is_reached_or_not_or_nobody_knows(target: Target, verdict: str) -> None:
    [row] = target_table(RESULTS, [target]).rows
    assert row[-1] == verdict


def test_a_row_has_median_range_number_and_aims() -> None:
    [row] = target_table(RESULTS, [AT_MOST]).rows
    assert row == ("1", "W", "ours / theirs", "0.455 [0.333, 0.5]", "3", "≤ 0.6", "≤ 0.55", "goal")
    plain = Target(22, "store", Plain("store", "read", "ms", 1e-3), 50)
    [row] = target_table(RESULTS, [plain]).rows
    assert row == ("22", "store", "read", "20 [20, 20] ms", "1", "≤ 50 ms", "–", "target")


def test_both_sides_of_a_ratio_are_of_one_day() -> None:
    """Of two days the first that has both; a side that the first day lacks is not joined with the other day's."""
    moment = MOMENT | {"at": "2026-11-26T12:00:00+00:00"}
    earlier = replace(RESULTS, parts={"W": {"begin": moment | {"at": "2026-11-22T12:00:00+00:00"}, "end": MOMENT}})
    ours = replace(
        RESULTS, parts={"W": {"begin": moment, "end": MOMENT}}, every=[Measurement("W", "ours", [2.0], [2.0])]
    )
    [row, missing] = target_table_of_days([ours, earlier], [AT_MOST, MISSING]).rows
    assert row[3:5] == ("0.455 [0.333, 0.5]", "3")
    assert (row[-1], missing[-1]) == ("2026-11-22", "–")
    both = replace(ours, every=[Measurement("W", "ours", [2.0], [2.0]), Measurement("W", "theirs", [4.0], [4.0])])
    [row] = target_table_of_days([both, earlier], [AT_MOST]).rows
    assert (row[3], row[-1]) == ("0.5 [0.5, 0.5]", "2026-11-26")
    times = {(one.part, one.name): one for one in joined_days([both, earlier]).every}
    assert times["W", "ours"].cpu == [2.0]
    assert times["W", "workers"].wall == [0.5, 0.5, 0.5]


def test_what_was_not_measured_may_be_left_out() -> None:
    assert len(target_table(RESULTS, [AT_MOST, MISSING], measured_only=True).rows) == 1


def test_times_of_workers_have_no_processor_seconds_and_vector_work_is_elsewhere() -> None:
    rows = {row[1]: row for row in times_table(RESULTS).rows}
    assert rows["workers"][3] == "–"
    assert rows["workers"][4] == "500 [500, 500] ms"
    assert rows["ours"][-1] == "Stacked, clients timed 10"
    assert "vectors FedAvg" not in rows


def test_vector_work_is_in_per_cent_of_two_gradients() -> None:
    [row] = vectors_table(RESULTS).rows
    assert row == ("FedAvg", "1 [1, 1]", "–")


def test_other_frameworks_say_what_they_include() -> None:
    assert peers_table(RESULTS).rows == [("Other", "7", "W", "FedAvg", "no augmentation", "–")]


def test_tables_are_whole_in_markdown_and_on_a_console() -> None:
    for table in (target_table(RESULTS), times_table(RESULTS), vectors_table(RESULTS), peers_table(RESULTS)):
        lines = table.markdown().splitlines()
        assert len(lines) == 2 + len(table.rows)
        assert {line.count("|") for line in lines} == {len(table.titles) + 1}
        console = Console(width=300)
        with console.capture() as captured:
            console.print(table.for_console())
        assert all(title in captured.get() for title in table.titles)


@pytest.mark.parametrize(
    ("value", "text"),
    [(Spread(1.5, 1.0, 2.0, 3), "1.5 [1, 2] s"), (Spread(0.0123, 0.01, 0.02, 3), "12.3 [10, 20] ms"), (2e-5, "20 µs"),
     (1234.5, "1234 s"), (1e-9, "0.001 µs")],
)  # fmt: skip
def test_seconds_have_a_unit_that_fits(value: Spread | float, text: str) -> None:
    assert seconds(value) == text


def test_circumstances_name_the_machine_and_its_load() -> None:
    text = circumstances(RESULTS)
    assert "threads 1, repeats 7; load at most 0.5" in text
    assert "torch" in text
    assert "quick" in circumstances(replace(RESULTS, settings=described(Settings(quick=True))))


def test_other_frameworks_stand_beside_ours_on_the_first_day_with_both() -> None:
    """4 s over 0.9 to 1.1 s; ratios of our own works, and those without a day, are left out."""
    both = replace(RESULTS, parts={"W": {"begin": {"at": "2026-01-02T03"}, "end": MOMENT}})
    without = replace(both, every=[one for one in both.every if one.name != "ours"])
    beside = replace(AT_MOST, quantity=Ratio(("W", "Other FedAvg"), ("W", "ours")))
    table = other_frameworks_table([without, both], [AT_MOST, beside, MISSING])
    assert table.rows == [("W", "Other FedAvg", "ours", "4 [3.64, 4.44]", "1", "2026-01-02")]
