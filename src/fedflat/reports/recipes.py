"""Recipes described: what they cover, what they cost, what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table

from ..core.errors import InputError, MissingPackageError
from ..experiments.budget import Budget, budget_of_runs, speed_of, total
from ..experiments.recipe import Cell, Recipe
from ..experiments.spec import StudySpec
from .published import line_of
from .text_table import text_table

UNKNOWN = "–"


def recipe_row(recipe: Recipe, measure: bool) -> list[str]:
    """Return the cells of a recipe in `listing.recipe_table`.

    Hours are there if the speed of every model is known here; with `measure` unknown speeds are measured.
    """
    cells = recipe.cells()
    costs = [_cost(recipe, cell.study(), measure) for cell in cells]
    work = [estimate for estimate, _ in costs if estimate is not None]
    hours = [some for _, some in costs if some is not None]
    return recipe_texts(recipe, total(work) if work else None, sum(hours) if len(hours) == len(cells) else None)


def recipe_texts(recipe: Recipe, work: Budget | None, hours: float | None) -> list[str]:
    """Return the cells of a recipe in `listing.recipe_table` from its cost; None where it is not known."""
    return [recipe.name, ", ".join(recipe.item.items), str(len(recipe.cells())), *_cost_texts(work, hours)]


def cell_table(recipe: Recipe, cells: Mapping[Cell, StudySpec], measure: bool) -> Table:
    """Return a table with one line per cell: the rounds of its study and its cost; `measure` as for `recipe_row`."""
    titles = ("cell", "rounds", "runs", "gradients", "GB sent", "hours here")
    rows = [
        (cell.name, f"{study.rounds:,}", *_cost_texts(*_cost(recipe, study, measure))) for cell, study in cells.items()
    ]
    return text_table(titles, rows, ("cell",), unbroken=("cell",))


def description(recipe: Recipe, cells: Iterable[Cell]) -> list[str]:
    """Return what a recipe is, and what the paper prints for these of its cells, as lines."""
    base = recipe.base
    first = [f"{recipe.name}: {recipe.item.title}", f"{base.title} ({base.paper}): {', '.join(recipe.item.items)}"]
    return [*first, *details(recipe), *(f"note: {note}" for note in base.notes), *_printed(recipe, cells)]


def details(recipe: Recipe) -> list[str]:
    """Return what the recipe does not share with the others of its paper: methods and notes."""
    methods = [f"methods: {', '.join(recipe.item.use)}"] if recipe.item.use else []
    return methods + [f"note: {note}" for note in recipe.item.notes]


def _printed(recipe: Recipe, cells: Iterable[Cell]) -> list[str]:
    """Return a line for each block of numbers that the paper prints for one of the cells, or for a mean over some."""
    options = [set(cell.options) for cell in cells]
    printed = recipe.published.blocks if recipe.published else []
    return [line_of(numbers) for numbers in printed if any(set(numbers.cell) <= some for some in options)]


def _cost(recipe: Recipe, study: StudySpec, measure: bool) -> tuple[Budget | None, float | None]:
    """Return the work of a cell, and the hours that it takes here; None if they are not known.

    The hours of a model that needs a package that is not installed are not known, nor is anything of one whose files
    are not here; its recipe is shown without them.
    """
    if recipe.item.kind == "partition":
        return None, None
    runs = study.runs()
    try:
        work = budget_of_runs(runs)
    except InputError:  # its model is in files that are not here, or is made by a package that is not installed
        return None, None
    try:
        known = speed_of(runs[0], measure=measure)
    except MissingPackageError:
        known = None
    return work, None if known is None else known.hours(work)


def _cost_texts(work: Budget | None, hours: float | None) -> list[str]:
    """Return the cells of a table from `runs` to `hours here`."""
    if work is None:  # only a partition is shown, or the model is not here
        return [UNKNOWN] * 4
    spent = UNKNOWN if hours is None else f"{hours:,.1f}" if hours >= 0.1 else "< 0.1"
    return [str(work.runs), _three_digits(work.gradients), f"{work.bytes / 1e9:,.1f}", spent]


def _three_digits(number: float) -> str:
    """Return a number as three digits and a unit."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
