"""`listing.json` against classes, files and speeds; `make docs-check` compares it with all classes and recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.experiments import budget
from fedflat.experiments.recipe import find_recipe
from fedflat.reports import listing, text_table

RECIPE = "fedvssam/figure1"  # of one cell


@pytest.fixture(autouse=True)
def _no_speed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path))


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
