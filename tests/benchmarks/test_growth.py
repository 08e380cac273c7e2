from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from benchmarks.growth import BASE, Cost, Point, cost, points


def test_the_axes_reach_from_the_smallest_to_the_largest() -> None:
    reach: dict[str, list[int]] = {}
    for point in points(quick=False):
        reach.setdefault(point.axis, []).append(point.value)
    assert {axis: (min(values), max(values)) for axis, values in reach.items()} == {
        "clients in all": (10**2, 10**6), "clients per round": (1, 10**4), "parameters": (985, 9_999_985),
        "local steps": (1, 1000), "workers": (1, 2),
    }  # fmt: skip


@pytest.mark.parametrize("point", points(quick=False), ids=lambda point: f"{point.axis} {point.value} {point.method}")
def test_a_point_is_what_its_axis_says(point: Point) -> None:
    work = point.work
    found = {"clients in all": work.clients, "clients per round": work.timed, "local steps": work.steps,
             "workers": point.workers}  # fmt: skip
    found["parameters"] = work.settings()["parameters"] if point.axis == "parameters" else 0
    assert found[point.axis] == point.value
    assert work.timed == work.cohort <= work.clients


def test_clients_in_all_are_measured_for_a_method_with_records_too() -> None:
    assert {point.method for point in points(True) if point.axis == "clients in all"} == {"FedAvg", "Scaffold"}


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_a_point_has_seconds_and_memory() -> None:
    found = cost(Point("clients in all", 200, "Scaffold", replace(BASE, clients=200)), repeats=2)
    assert 0 < found.wall.low <= found.wall.median <= found.wall.high
    assert found.wall.n == found.cpu.n == 2
    assert 0 < found.setup < 60
    assert found.peak is None or found.peak >= 0
    assert Cost.of(asdict(found)) == found
