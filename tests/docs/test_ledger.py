"""The ledger of reproductions as docs/published.md shows it, and what a reproduction would cost."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from docs import ledger
from fedflat.experiments.recipe import find_recipe
from fedflat.experiments.reproductions import LedgerEntry, read_ledger

DOCS = Path(__file__).parents[2] / "docs"
ENTRY = LedgerEntry(
    "p/t", "a,b", "FedAvg", "74.08 ± 0.22", 12.5, 0.5, [0, 2], [1], 2, 800, ["model.name"], ["abc", "def"]
)


@pytest.fixture(scope="module")
def costs() -> list[ledger.Cost]:
    return ledger.costs()


def test_an_entry_shows_its_share_and_why_it_is_none() -> None:
    whole = replace(ENTRY, rounds=800, changed=[], missing=[], spread=None, paper=None)
    text = ledger.ledger([ENTRY, whole])
    assert text.startswith("Entries: 2; reproductions at full protocol: 1.")
    assert (
        "| p/t | `a,b` | FedAvg | 74.08 ± 0.22 | 12.50 ± 0.50 | 0, 2; diverged: 1 | 0.0025 (2 of 800) | `abc`, `def` | "
        "**not a reproduction**: 0.0025 of the rounds; changed: model.name |"
    ) in text
    assert "| – | 12.50 | 0, 2 |" in text
    assert text.endswith("| 0, 2 | 1 (800 of 800) | `abc`, `def` | a reproduction |")


def test_every_entry_of_the_ledger_is_on_the_page() -> None:
    page = (DOCS / "published.md").read_text()
    shown = page.split("<!-- ledger: ")[1].split("<!-- end of ledger -->")[0]
    assert len(re.findall(r"^\| \w+/", shown, re.MULTILINE)) == len(read_ledger(ledger.FILE))
    for one in read_ledger(ledger.FILE):
        for word in (one.recipe, one.cell, one.method, *one.commits, f"{one.ours:.2f}"):
            assert word in shown
        assert ("not a reproduction" in shown) or not one.why_none


@pytest.mark.slow
def test_the_costs_are_those_of_the_page_of_recipes(costs: list[ledger.Cost]) -> None:
    """Where the paper prints a number for every method of the cell."""
    rows = [line.strip("| ").split(" | ") for line in (DOCS / "recipes.md").read_text().splitlines()]
    stated = {
        (row[0], row[5].strip("`")): float(row[6].replace(",", ""))
        for row in rows
        if len(row) == 7 and row[2].isdigit()
    }
    compared = 0
    for one in costs:
        key = one.cell.recipe.name, one.cell.name
        if key in stated and list(one.hours) == one.cell.labels:
            assert one.total == pytest.approx(stated[key], abs=0.05)
            compared += 1
    assert compared >= 5


@pytest.mark.slow
def test_a_cost_is_of_the_method_that_has_the_label(costs: list[ledger.Cost]) -> None:
    [cell] = find_recipe("fedgf/table5").cells("cifar10,alpha-0")
    runs = ledger.by_label(cell, cell.study().runs())
    assert {label: [run.method.fields.get("c") for run in own] for label, own in runs.items()} == {
        "FedGF(c=0)": [0.0], "FedGF(c=0.5)": [0.5], "FedGF(c=1)": [1.0], "FedGF": [None],
    }  # fmt: skip
    two = next(one for one in costs if one.cell.recipe.name == "fedgf/table1" and one.cell.name == cell.name)
    assert two.hours["FedSAM"] > 1.3 * two.hours["FedAvg"], "two gradients a step; evaluation is the same"


@pytest.mark.slow
def test_what_is_affordable_is_counted(costs: list[ledger.Cost]) -> None:
    said = ledger.affordable(costs)
    whole, single = ([hours for one in costs for hours in few(one)] for few in (
        lambda one: [one.total], lambda one: one.hours.values()))  # fmt: skip
    fit = sum(hours <= 30 for hours in whole)
    assert f"Of {len(whole)} cells with test accuracies of the paper {fit or 'none'} can be run whole in 30 " in said
    assert f"Of {len(single):,} single methods in a cell {sum(hours <= 30 for hours in single)} can" in said
    assert f"takes {min(single):.1f}.\n" in said
    [line] = re.findall(r"^fedflat recipes run (\S+) --cell (\S+) --only (\S+) ", said, re.MULTILINE)
    [cell] = find_recipe(line[0]).cells(line[1])
    assert line[2] in cell.labels
