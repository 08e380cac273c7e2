from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.growth import Cost
from benchmarks.growth_figure import growth_figure, read_growth, write_growth
from benchmarks.measurement import Spread
from benchmarks.results import Settings
from docs.measured_tables import growth_table
from support.files import refused

pytestmark = pytest.mark.slow


def a_cost(axis: str, value: int, method: str = "FedAvg", peak: int | None = 20_000_000) -> Cost:
    wall = Spread(0.1 * value, 0.09 * value, 0.12 * value, 3)
    return Cost(axis, value, method, wall, wall, setup=0.5, peak=peak, executor="Stacked")


COSTS = [a_cost("clients", n, method) for method in ("FedAvg", "Scaffold") for n in (1, 10)] + [
    a_cost("workers", 2, peak=None)
]


def test_the_figure_has_every_axis_and_method() -> None:
    text = growth_figure(COSTS)
    for word in ("clients", "workers", "FedAvg", "Scaffold", "seconds of a round", "peak memory"):
        assert f">{word}" in text, word
    ElementTree.fromstring(text)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    files = write_growth(COSTS, Settings(), tmp_path / "new")
    assert [file.name for file in files] == ["growth.json", "growth.svg"]
    assert read_growth(files[0]) == COSTS


def test_the_table_has_a_row_for_every_point() -> None:
    rows = growth_table(COSTS).rows
    assert rows[1] == ("clients", "10", "FedAvg", "Stacked", "1 [0.9, 1.2] s", "20", "500 ms")
    assert rows[-1][5] == "–"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("file cannot be made"):
        write_growth(COSTS, Settings(), tmp_path / "file")
