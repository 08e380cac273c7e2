"""The ledger of reproductions on docs/published.md: its entries, and what a reproduction would cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import recipe_costs
from benchmarks.tables import MISSING, Table
from fedflat.experiments.budget import budget_of_runs
from fedflat.experiments.recipe import Cell
from fedflat.experiments.reproductions import LedgerEntry, read_ledger
from fedflat.experiments.spec import RunSpec
from fedflat.reports.published import ACCURACY

FILE = Path(__file__).with_name("reproductions.json")
AFFORDABLE = 30.0  # core-hours that are spent on a reproduction here


@dataclass(frozen=True)
class Cost:
    """Core-hours at full protocol of the methods of a cell whose test accuracy the paper prints."""

    cell: Cell
    seeds: int
    hours: dict[str, float]  # by method

    @property
    def total(self) -> float:
        """Of all these methods."""
        return sum(self.hours.values())

    @property
    def cheapest(self) -> str:
        """The method that costs least; the first one of several."""
        return min(self.hours, key=self.hours.__getitem__)

    @property
    def least(self) -> float:
        """Of the cheapest method."""
        return self.hours[self.cheapest]


def parts() -> dict[str, str]:
    """Return the parts of the page, by mark."""
    every = costs()
    return {"ledger": ledger(read_ledger(FILE)), "affordable": affordable(every), "reproduction costs": table(every)}


def ledger(entries: Sequence[LedgerEntry]) -> str:
    """Return what the ledger holds, and how many of it are reproductions."""
    whole = sum(not one.why_none for one in entries)
    said = f"Entries: {len(entries)}; reproductions at full protocol: {whole}."
    titles = ("recipe", "cell", "method", "paper", "ours", "seeds", "share of the rounds", "commit", "what it is")
    rows = [_row(one) for one in entries]
    return f"{said}\n\n{Table(titles, rows).markdown()}" if rows else said


def _row(one: LedgerEntry) -> tuple[str, ...]:
    spread = "" if one.spread is None else f" ± {one.spread:.2f}"
    lost = f"; diverged: {', '.join(map(str, one.missing))}" if one.missing else ""
    return (
        one.recipe, f"`{one.cell}`", one.method, one.paper or MISSING, f"{one.ours:.2f}{spread}",
        f"{', '.join(map(str, one.seeds))}{lost}", f"{one.share:.3g} ({one.rounds:,} of {one.rounds_of_paper:,})",
        ", ".join(f"`{commit}`" for commit in one.commits),
        f"**not a reproduction**: {one.why_none}" if one.why_none else "a reproduction",
    )  # fmt: skip


def costs() -> list[Cost]:
    """Return the costs of every cell with a test accuracy of the paper, of kinds whose speed was measured."""
    speeds = recipe_costs.speeds_of(json.loads(recipe_costs.FILE.read_text()))
    found = []
    for cell, runs in recipe_costs.cells():
        printed = {label for block in cell.published if block.quantity == ACCURACY for label in block.values_by_method}
        speed = speeds.get(recipe_costs.kind_of(runs[0]))
        hours = {label: speed.seconds(budget_of_runs(own)) / 3600
                 for label, own in by_label(cell, runs).items() if speed and label in printed}  # fmt: skip
        if hours:
            found.append(Cost(cell, len({run.seed for run in runs}), hours))
    return found


def by_label(cell: Cell, runs: Sequence[RunSpec]) -> dict[str, list[RunSpec]]:
    """Return the runs of each method of a cell, in the order of its labels."""
    first = [run for run in runs if run.seed == runs[0].seed]  # a run of each method, in order
    return {label: [run for run in runs if run.method == one.method]
            for label, one in zip(cell.labels, first, strict=bool(cell.labels))}  # fmt: skip


def affordable(every: Sequence[Cost]) -> str:
    """Return which cells fit AFFORDABLE, and the cheapest ones."""
    cell, method = min(every, key=lambda one: one.total), min(every, key=lambda one: one.least)
    whole = sum(one.total <= AFFORDABLE for one in every)
    single = [hours for one in every for hours in one.hours.values()]
    fitting = sum(hours <= AFFORDABLE for hours in single)
    return (
        f"Of {len(every)} cells with test accuracies of the paper {whole or 'none'} can be run whole in {AFFORDABLE:g} "
        f"core-hours: the cheapest, {_named(cell)}, takes {cell.total:,.0f} for its {len(cell.hours)} methods with "
        f"{cell.seeds} seed{'s' * (cell.seeds != 1)}. Of {len(single):,} single methods in a cell {fitting} can: the "
        f"cheapest, {method.cheapest} in {_named(method)}, takes {method.least:.1f}.\n\n"
        f"```bash\n{command(method)}\n```"
    )


def command(one: Cost) -> str:
    """Return the command that runs the cheapest method of a cell at full protocol on a GPU, and records it."""
    return (
        f"fedflat recipes run {one.cell.recipe.name} --cell {one.cell.name} --only {one.cheapest} --device cuda "
        "--data-dir ~/data --record docs/reproductions.json"
    )


def table(every: Sequence[Cost]) -> str:
    """Return the cheapest cell of each recipe, and the cheapest method of that recipe."""
    names = dict.fromkeys(one.cell.recipe.name for one in every)
    rows = []
    for name in names:
        own = [one for one in every if one.cell.recipe.name == name]
        cell, method = min(own, key=lambda one: one.total), min(own, key=lambda one: one.least)
        rows.append((name, f"`{cell.cell.name}`", str(len(cell.hours)), f"{cell.total:,.0f}",
                     f"{method.cheapest}, `{method.cell.name}`", f"{method.least:,.1f}"))  # fmt: skip
    titles = ("recipe", "cheapest cell", "methods with a number", "core-hours", "cheapest method", "core-hours")
    return Table(titles, rows).markdown()


def _named(one: Cost) -> str:
    return f"`{one.cell.name}` of {one.cell.recipe.name}"
