"""docs/published.md: its spreads are those of its rows, and copies are no measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import published
from docs.published import Entry, cell_table, entries, shared

PAGE = (Path(__file__).parents[2] / "docs" / "published.md").read_text()


def sections() -> dict[str, list[list[str]]]:
    """The rows of the table of each cell, as they stand on the page."""
    found = re.split(r"^### (.+)$", PAGE[PAGE.index("## Cells") :], flags=re.MULTILINE)[1:]
    return {title: rows_of(text) for title, text in zip(found[::2], found[1::2], strict=True)}


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines if not line.startswith("| ---")]


def rows_between(what: str) -> list[list[str]]:
    return rows_of(PAGE.split(f"<!-- {what}: ")[1].split(f"<!-- end of {what} -->")[0])


@pytest.mark.parametrize("cell", sections())
def test_the_spread_of_a_cell_is_that_of_its_rows_without_copies(cell: str) -> None:
    titles, *rows = sections()[cell]
    *sources, least, most, difference = rows
    for place in range(2, len(titles)):
        own = [float(row[place]) for row in sources if re.fullmatch(r"[\d.]+", row[place])]
        stated = [row[place] for row in (least, most, difference)]
        if len(own) < 2:
            assert stated == ["–"] * 3
        else:
            assert stated == [f"{number:.2f}" for number in (min(own), max(own), max(own) - min(own))]


def test_the_widest_method_of_a_cell_is_the_one_of_its_table() -> None:
    summary = {re.match(r"\[(.+)\]", row[0])[1]: row for row in rows_between("spread")[1:]}
    assert list(summary) == [cell for cell, rows in sections().items() if set(rows[-1][2:]) != {"–"}]
    for cell, row in summary.items():
        titles, *_, difference = sections()[cell]
        widths = {title: float(width) for title, width in zip(titles[2:], difference[2:], strict=True) if width != "–"}
        assert float(row[5]) == max(widths.values()) == widths[row[2]]
        assert int(row[1]) == len(widths)


def test_a_copy_is_marked_and_not_counted() -> None:
    ours = Entry("later", ("c",), "x", {"A": 2.0, "B": 5.0, "C": 4.0}, 800)
    theirs = Entry("first", ("c",), "x", {"A": 2.0, "B": 3.0, "C": 4.0}, 800)
    third = Entry("third", ("c",), "x", {"A": 1.0}, 800)
    rows = cell_table(published.with_copies([theirs, ours, third])).rows
    assert rows == [
        ("first", "800", "2.00", "3.00", "4.00"),
        ("later", "800", "= 2.00", "5.00", "= 4.00"),
        ("third", "800", "1.00", "–", "–"),
        ("**least**", "", "1.00", "3.00", "–"),
        ("**most**", "", "2.00", "5.00", "–"),
        ("**difference**", "", "1.00", "2.00", "–"),
    ]


def test_equal_by_chance_is_no_copy() -> None:
    both = [Entry(name, ("c",), "x", {"A": 2.0, "B": number}, 800) for name, number in (("one", 3.0), ("two", 5.0))]
    assert all(not entry.copies for entry in published.with_copies(both))


def test_fedlesam_repeats_fedsmoo_and_nobody_else_repeats_another_paper() -> None:
    papers = {(row[0].split()[0], row[1].split()[0]) for row in rows_between("copies")[1:]}
    assert {pair for pair in papers if pair[0] != pair[1]} == {("FedLESAM", "FedSMOO")}


def test_two_tables_of_one_paper_are_not_two_sources() -> None:
    assert all(len({entry.origin for entry in some}) > 1 for some in shared(entries()).values())
    assert not any(entry.paper == "fedgf" for some in shared(entries()).values() for entry in some)


def test_a_method_of_the_ledger_is_one_of_ours_and_its_cell_one_of_the_recipes() -> None:
    known = {entry.cell for entry in entries() if entry.paper}
    labels = {label for entry in entries() if entry.paper for label in entry.values}
    others = [entry for entry in entries() if not entry.paper]
    assert others
    for entry in others:
        assert entry.cell in known
        assert entry.values.keys() <= labels | {"FedSpeed"}
        assert entry.read


def test_sources_differ_on_the_sign_of_fedsam_minus_fedavg() -> None:
    differences = {float(text) for row in rows_between("differences")[1:] for text in row[1:] if text != "–"}
    assert min(differences) < 0 < max(differences)
