"""The table of the clients of a rehearsal, on a console and on the page."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from fedflat.federation.flower.client_reports import ClientReport
from fedflat.reports.federation import report_rows, reports_caption, reports_table

CLASSES = [f"class_{letter}" for letter in "abcdefghij"]


def report(name: str, own: bool, worst: str, test_samples: int = 50) -> ClientReport:
    """Return a report whose class `worst` has the lowest recall, 0.125 and of the own model 0.0625; others have 0.5."""
    recalls = {f"recall/{one}": 0.125 if one == worst else 0.5 for one in CLASSES}
    scores = {"accuracy": 0.75, "loss": 1.5, "balanced_accuracy": 0.5, **recalls}
    own_scores = scores | {"accuracy": 0.25, f"recall/{worst}": 0.0625} if own else {}
    return ClientReport(name, 100, 10, test_samples, *((scores, own_scores) if test_samples else ({}, {})))


def shown(reports: list[ClientReport], width: int) -> list[list[str]]:
    """Return the words of every line of the table on a console of this width."""
    output = StringIO()
    Console(file=output, width=width).print(reports_table(reports))
    return [line.split() for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 200])
def test_the_console_has_the_lowest_recall_in_a_row_for_each_model(width: int) -> None:
    """Ten classes in a column each would leave four letters of each title, and of each number."""
    lines = shown([report("north", True, "class_c"), report("south", True, "class_j")], width)
    assert [line for line in lines if line[:1] in (["north"], ["south"])] == [
        [name, model, "100", "10", "50", *scores]
        for name in ("north", "south")
        for model, *scores in (("server's", "0.750", "0.500", "0.125"), ("own", "0.250", "0.500", "0.062"))
    ]


def test_the_console_names_no_model_if_none_has_parts_that_stay() -> None:
    lines = shown([report("north", False, "class_c")], 80)
    assert ["north", "100", "10", "50", "0.750", "0.500", "0.125"] in lines
    assert "model" not in {word for line in lines[:3] for word in line}


def test_the_page_has_the_recall_of_every_class_under_its_own_name() -> None:
    titles, (row,) = report_rows([report("north", True, "class_c")])
    assert titles[4:7] == ["accuracy", "loss", "balanced accuracy"]
    for whose, lowest in (("", "0.125"), ("own ", "0.062")):
        found = {one: row[titles.index(f"{whose}recall/{one}")] for one in CLASSES}
        assert found == {one: lowest if one == "class_c" else "0.500" for one in CLASSES}
    assert titles.index("own accuracy") == 4 + 3 + len(CLASSES)


def test_a_class_may_be_named_like_a_score() -> None:
    scores = {"accuracy": 0.75, "recall/accuracy": 0.25, "recall/loss": 0.5}
    reports = [ClientReport("north", 1, 1, 1, scores)]
    assert ["north", "1", "1", "1", "0.750", "0.250"] in shown(reports, 80)
    titles, (row,) = report_rows(reports)
    assert dict(zip(titles[4:], row[4:], strict=True)) == {name: f"{value:.3f}" for name, value in scores.items()}


def test_the_caption_explains_what_is_there() -> None:
    with_test, without = report("north", False, "class_a"), report("south", False, "class_a", test_samples=0)
    assert reports_caption([with_test]) == "the final model on each client's own test samples"
    assert "own: " in reports_caption([report("north", True, "class_a")])
    assert "a client without test files has no scores" in reports_caption([with_test, without])
    _, rows = report_rows([with_test, without])
    assert set(rows[1][4:]) == {"–"}
