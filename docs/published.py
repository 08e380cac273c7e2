"""The tables of docs/published.md: test accuracies that several sources print for the same cell, and their spread.

`coverage_table` is in docs/recipes.md.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median

from benchmarks.tables import MISSING, Table
from fedflat.experiments.recipe import Recipe, all_recipes
from fedflat.methods import find
from fedflat.reports.published import ACCURACY

OTHERS = Path(__file__).with_name("published.toml")  # sources outside the papers of the recipes
Cell = tuple[str, ...]  # the options of a recipe's cell


@dataclass(frozen=True)
class Entry:
    """The test accuracies in percent that one source prints for one cell."""

    name: str
    cell: Cell
    read: str
    values: dict[str, float]  # by method
    rounds: int | None = None  # None if they are not known
    note: str = ""
    copies: dict[str, str] = field(default_factory=dict)  # by method, the name of the earlier source with the number
    paper: str = ""  # of the recipes; empty for other sources

    @property
    def origin(self) -> str:
        """The paper, or the source itself: what two tables of one paper have in common."""
        return self.paper or self.name


@cache
def entries() -> list[Entry]:
    """Return what every source prints, the papers of the recipes first, by year; copies are marked."""
    recipes = sorted((one for one in all_recipes().values() if one.published), key=_year)
    found = [entry for recipe in recipes for entry in _of_recipe(recipe)]
    others = tomllib.loads(OTHERS.read_text())["source"]
    return with_copies([*found, *(Entry(**one | {"cell": tuple(one["cell"])}) for one in others)])


def shared(found: Sequence[Entry]) -> dict[Cell, list[Entry]]:
    """Return the cells with a method that at least two papers or other sources print, with what they print."""
    by_cell: dict[Cell, list[Entry]] = {}
    for entry in found:
        by_cell.setdefault(entry.cell, []).append(entry)
    return {cell: some for cell, some in by_cell.items() if _methods(some)}


def spread(some: Sequence[Entry], method: str) -> tuple[float, float] | None:
    """Return the least and the most of what the sources print that copy nobody; None if fewer than two are left."""
    own = [entry.values[method] for entry in some if method in entry.values and method not in entry.copies]
    return (min(own), max(own)) if len(own) > 1 else None


def coverage_table() -> Table:
    """Return how many of the cells of the papers' tables have the paper's numbers in the recipes."""
    papers = dict.fromkeys(recipe.paper for recipe in all_recipes().values() if recipe.published)
    rows = [_coverage(paper, [one for one in all_recipes().values() if one.paper == paper]) for paper in papers]
    rows.append(("all", [sum(counts) for counts in zip(*(counts for _, counts in rows), strict=True)]))
    titles = ("paper", "cells with numbers", "cells of its tables", "numbers", "failed or not reached", "not readable")
    return Table(titles, [(paper, *(f"{count:,}" for count in counts)) for paper, counts in rows])


def source_table() -> Table:
    """Return every source of the page: in what it was read, its rounds, and what to know of it."""
    rows = dict.fromkeys(
        (entry.name, entry.read, _rounds(entry), entry.note) for some in shared(entries()).values() for entry in some
    )
    return Table(("source", "read in", "rounds", "note"), list(rows))


def copy_table() -> Table:
    """Return which sources repeat which, and where they do not."""
    titles = ("source", "repeats", "numbers equal, of those in common", "not equal (there, here)")
    return Table(titles, [_copy_row(*pair) for pair in _copying(entries())])


def spread_table() -> Table:
    """Return for each cell the method of which sources differ most, and the median of all methods' differences."""
    rows: list[tuple[str, ...]] = []
    for cell, some in shared(entries()).items():
        spreads = {method: found for method in _methods(some) if (found := spread(some, method))}
        if spreads:
            widest = max(spreads, key=lambda method: spreads[method][1] - spreads[method][0])
            least, most = spreads[widest]
            middle = median(high - low for low, high in spreads.values())
            numbers = (f"{least:.2f}", f"{most:.2f}", f"{most - least:.2f}", f"{middle:.2f}")
            rows.append((f"[{','.join(cell)}](#{_anchor(cell)})", str(len(spreads)), widest, *numbers))
    return Table(("cell", "methods", "widest", "least", "most", "difference", "median difference"), rows)


def cell_tables() -> str:
    """Return a table for every cell that several sources print."""
    parts = []
    for cell, some in shared(entries()).items():
        parts += [f"### {','.join(cell)}", "", cell_table(some).markdown(), ""]
    return "\n".join(parts).rstrip()


def cell_table(some: Sequence[Entry]) -> Table:
    """Return what each source prints for one cell, copies with a sign, and the spread of what is no copy."""
    methods = _methods(some)
    rows = [(entry.name, _rounds(entry), *(_text(entry, method) for method in methods)) for entry in some]
    spreads = [spread(some, method) for method in methods]
    for title, of in (("least", lambda two: two[0]), ("most", lambda two: two[1]), ("difference", _width)):
        rows.append((f"**{title}**", "", *(MISSING if two is None else f"{of(two):.2f}" for two in spreads)))
    return Table(("source", "rounds", *methods), rows)


def difference_table() -> Table:
    """Return FedSAM minus FedAvg by source, on CIFAR with Dirichlet 0.1 and 10 of 100 clients."""
    cells = [(data, "dirichlet-0.1", "10-of-100") for data in ("cifar10", "cifar100")]
    found: dict[str, dict[Cell, float]] = {}
    for entry in entries():
        if {"FedSAM", "FedAvg"} <= entry.values.keys() and "FedSAM" not in entry.copies and entry.cell in cells:
            found.setdefault(entry.name, {})[entry.cell] = entry.values["FedSAM"] - entry.values["FedAvg"]
    for one in tomllib.loads(OTHERS.read_text())["difference"]:
        found.setdefault(f"{one['name']} ({one['read']})", {})[tuple(one["cell"])] = one["value"]
    rows = [
        (name, *(f"{some[cell]:+.2f}" if cell in some else MISSING for cell in cells)) for name, some in found.items()
    ]
    return Table(("source", "CIFAR-10", "CIFAR-100"), rows)


def _year(recipe: Recipe) -> int:
    """Return the year of a recipe's paper."""
    return int(re.findall(r"\b20\d\d\b", recipe.base.paper)[0])


def _of_recipe(recipe: Recipe) -> Iterator[Entry]:
    """Yield the accuracies that the paper prints for single cells of the recipe."""
    rounds = {cell.options: cell.study().rounds for cell in recipe.cells()}
    for numbers in recipe.published.blocks if recipe.published else ():
        if numbers.quantity == ACCURACY and numbers.values_by_method and not numbers.mean_over_cells:
            values = {label: x[0] if isinstance(x, list) else x for label, x in numbers.values_by_method.items()}
            name = f"{find(recipe.paper).__name__} {numbers.where.split(',')[0]}"
            assert recipe.published is not None
            cell = tuple(numbers.cell)
            yield Entry(name, cell, recipe.published.read, values, rounds[cell], paper=recipe.paper)


def with_copies(found: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with the numbers marked that they have from an earlier source."""
    for first, later in _copying(found):
        for ours in found:
            theirs = [entry for entry in found if (entry.name, entry.cell) == (first, ours.cell)]
            if ours.name == later and theirs:
                same = [label for label, value in ours.values.items() if theirs[0].values.get(label) == value]
                ours.copies.update({label: first for label in same if label not in ours.copies})
    return list(found)


def _copying(found: Sequence[Entry]) -> list[tuple[str, str]]:
    """Return pairs of names of sources of which more than half of the common numbers are equal to all digits.

    The first one of a pair is no copy itself.
    """
    names, pairs = dict.fromkeys(entry.name for entry in found), list[tuple[str, str]]()
    for first, later in combinations(names, 2):
        if first not in [copy for _, copy in pairs] and _is_copy(_common(found, first, later)):
            pairs.append((first, later))
    return pairs


def _is_copy(pairs: Sequence[tuple[Cell, str, float, float]]) -> bool:
    return 2 * sum(theirs == ours for _, _, theirs, ours in pairs) > len(pairs)


def _common(found: Sequence[Entry], first: str, later: str) -> list[tuple[Cell, str, float, float]]:
    """Return the numbers that two sources both have: cell, method, the first's, the later's."""
    cells = {entry.cell: entry.values for entry in found if entry.name == first}
    return [
        (entry.cell, method, cells[entry.cell][method], value)
        for entry in found
        if entry.name == later and entry.cell in cells
        for method, value in entry.values.items()
        if method in cells[entry.cell]
    ]


def _copy_row(first: str, later: str) -> tuple[str, ...]:
    pairs = _common(entries(), first, later)
    others = [
        f"{','.join(cell)} {method}: {theirs:.2f}, {ours:.2f}" for cell, method, theirs, ours in pairs if theirs != ours
    ]
    return later, first, f"{len(pairs) - len(others)} of {len(pairs)}", "; ".join(others) or MISSING


def _methods(some: Sequence[Entry]) -> list[str]:
    """Return the methods that at least two papers or other sources print, in the order of the first one."""
    labels = dict.fromkeys(label for entry in some for label in entry.values)
    return [label for label in labels if len({entry.origin for entry in some if label in entry.values}) > 1]


def _rounds(entry: Entry) -> str:
    return MISSING if entry.rounds is None else f"{entry.rounds:,}"


def _text(entry: Entry, method: str) -> str:
    if method not in entry.values:
        return MISSING
    return f"{'= ' if method in entry.copies else ''}{entry.values[method]:.2f}"


def _width(two: tuple[float, float]) -> float:
    return two[1] - two[0]


def _anchor(cell: Cell) -> str:
    """Return where a link to a cell's heading leads."""
    return re.sub(r"[^\w\-]", "", ",".join(cell))


def _coverage(paper: str, recipes: Sequence[Recipe]) -> tuple[str, list[int]]:
    """Return the row of `coverage_table` of one paper."""
    cells = [
        cell for recipe in recipes if any("Table" in item for item in recipe.item.items) for cell in recipe.cells()
    ]
    covered = [cell for cell in cells if any(numbers.cell and numbers.values_by_method for numbers in cell.published)]
    blocks = [one for recipe in recipes if recipe.published for one in recipe.published.blocks]
    absent = [reason for one in blocks for reason in one.absent.values()]
    unreadable = absent.count("not readable")
    numbers = sum(len(one.values_by_method) for one in blocks)
    return paper, [len(covered), len(cells), numbers, len(absent) - unreadable, unreadable]
