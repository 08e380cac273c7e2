from __future__ import annotations

import pytest

from benchmarks.measurement import Measurement, Measurements, Spread, ratio


def measured(name: str, cpu: list[float], part: str = "W", alone: bool = False) -> Measurement:
    return Measurement(part, name, cpu, [10 * x for x in cpu], alone=alone)


A = measured("A", [2.0, 4.0, 9.0])
B = measured("B", [1.0, 4.0, 3.0])


def test_a_ratio_is_that_of_medians_and_its_range_goes_turn_by_turn() -> None:
    assert ratio(A, B, "cpu") == Spread(median=4 / 3, low=1.0, high=3.0, n=3)


@pytest.mark.parametrize(
    "other",
    [measured("B", B.cpu, part="V"), measured("B", B.cpu, alone=True), measured("B", [1.0, 3.0, 4.0, 3.0])],
    ids=["another part", "another program", "another number of times"],
)
def test_times_that_were_not_taken_in_turns_have_the_range_of_any_two(other: Measurement) -> None:
    found = ratio(A, other, "cpu")
    assert found == Spread(median=4 / 3, low=2 / 4, high=9 / 1, n=3)


def test_the_clock_is_another_kind() -> None:
    assert ratio(A, A, "wall") == Spread(1.0, 1.0, 1.0, 3)
    assert A.values("wall") == [20.0, 40.0, 90.0]


def test_what_was_not_taken_gives_no_ratio() -> None:
    workers = Measurement("W", "workers", wall=[1.0])
    assert ratio(A, workers, "cpu") is None
    assert ratio(workers, A, "cpu") is None


def test_measurements_are_found_by_part_and_name() -> None:
    every = Measurements([A, measured("A", [1.0], part="V")])
    assert every.find("V", "A").cpu == [1.0]
    assert every.find("V", "B") is None
    assert every.of("W") == [A]
