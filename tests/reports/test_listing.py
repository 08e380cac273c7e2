"""`listing.json` against classes, files and speeds; `make docs-check` compares it with all classes and recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from fedflat.core.method import GROUPS
from fedflat.experiments import budget
from fedflat.experiments.recipe import find_recipe
from fedflat.methods import all_methods
from fedflat.reports import listing, text_table

RECIPE = "fedvssam/figure1"  # of one cell


@pytest.fixture(autouse=True)
def _no_speed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path))


def test_a_method_without_an_entry_is_read_off_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    methods, known = listing.method_rows(), listing.listing()
    fewer = {"modules": known["methods"]["modules"][1:], "rows": known["methods"]["rows"][1:]}
    monkeypatch.setattr(listing, "listing", lambda: known | {"methods": fewer})
    assert listing.method_rows() == methods


def test_every_method_is_in_the_group_that_its_class_states_in_the_order_of_the_groups() -> None:
    rows = listing.method_rows()
    assert {row[0]: row[1] for row in rows} == {name: cls.group for name, cls in all_methods().items()}
    assert len(rows) == len(all_methods())
    places = [GROUPS.index(row[1]) for row in rows]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [80, 160, 200])
def test_methods_fit_their_lines_below_their_groups(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = listing.method_rows()
    Console(width=width).print(listing.method_table(rows, width))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line], "nothing is cut off"
    found, group = [], ""
    for line in map(str.strip, lines):
        group = line if line in GROUPS else group
        found += [(row[0], group, *row[3:7]) for row in rows if re.match(rf"{row[0]} .* {' +'.join(row[3:7])} ", line)]
    assert found == [(row[0], row[1], *row[3:7]) for row in rows]


def test_a_recipe_without_an_entry_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, known = listing.recipe_rows("fedvssam"), listing.listing()
    entries = [entry for entry in known["recipes"] if entry["row"][0] != RECIPE]
    monkeypatch.setattr(listing, "listing", lambda: known | {"recipes": entries})
    assert listing.recipe_rows("fedvssam") == rows


def test_hours_are_shown_where_the_speed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "TIMED_STEPS", 2)
    study = find_recipe(RECIPE).cells()[0].study()
    speed = budget.speed_of(study.runs()[0])
    assert speed is not None
    rows = {row[0]: row for row in listing.recipe_rows("fedvssam")}
    hours = speed.seconds(budget.budget_of_runs(study.runs())) / 3600
    assert rows[RECIPE][-1] == (f"{hours:,.1f}" if hours >= 0.1 else "< 0.1")
    assert rows["fedvssam/table1"][-1] == text_table.NOTHING, "of another model"


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_damaged_file_of_speeds_is_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / listing.SPEEDS).write_text(content)
    assert {row[-1] for row in listing.recipe_rows()} == {text_table.NOTHING}


def test_a_recipe_whose_model_is_in_files_is_computed_once_they_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = next(one for one in listing.listing()["recipes"] if one["files"])
    assert not listing._is_more_known(entry, [])
    Path(entry["files"]).mkdir()
    assert listing._is_more_known(entry, [])
