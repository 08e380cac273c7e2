"""Recipes described: what they cover, what they cost, what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich import box
from rich.table import Table

from ..experiments.budget import Budget, Speed
from ..experiments.recipe import Cell, Recipe
from ..experiments.recipe_files import Published
from ..experiments.spec import StudySpec
from .literal import literal

UNKNOWN = "–"
LEGEND = (
    "at full scale: gradients are minibatch gradients of all clients and methods, GB goes both ways; hours are "
    "those of gradients and evaluations one after another, from 20 steps measured once per model, batch size and "
    "device; measures of flatness come on top"
)


def overview(rows: Iterable[tuple[Recipe, int, Budget | None, float | None]]) -> Table:
    """One line per recipe: its number of cells, its cost, and hours if they are known."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=LEGEND, caption_justify="left")
    for title in ("recipe", "covers", "cells", "runs", "gradients", "GB sent", "hours here"):
        table.add_column(title, justify="left" if title in ("recipe", "covers") else "right", no_wrap=title == "recipe")
    for recipe, cells, work, hours in rows:
        table.add_row(*map(literal, (recipe.name, ", ".join(recipe.item.items), str(cells), *_cost(work, hours))))
    return table


def cell_table(cells: Mapping[Cell, tuple[StudySpec, Budget | None, float | None]]) -> Table:
    """One line per cell, with the rounds of the study that it is here."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("cell", "rounds", "runs", "gradients", "GB sent", "hours here"):
        table.add_column(title, justify="left" if title == "cell" else "right", no_wrap=title == "cell")
    for cell, (study, work, hours) in cells.items():
        table.add_row(*map(literal, (cell.name, f"{study.rounds:,}", *_cost(work, hours))))
    return table


def description(recipe: Recipe) -> list[str]:
    """What a recipe is, one thought a line."""
    base = recipe.base
    first = [f"{recipe.name}: {recipe.item.title}", f"{base.title} ({base.paper}): {', '.join(recipe.item.items)}"]
    return [*first, *details(recipe), *(f"note: {note}" for note in base.notes)]


def details(recipe: Recipe) -> list[str]:
    """What is the recipe's own: methods, what is left out, notes, the paper's numbers."""
    item, lines = recipe.item, []
    if item.use:
        lines.append(f"methods: {', '.join(item.use)}")
    lines += [f"note: {note}" for note in item.notes]
    return lines + [_published(numbers) for numbers in item.published]


def _published(numbers: Published) -> str:
    where = ",".join(numbers.cell) or "all cells"
    values = ", ".join(f"{label} {value}" for label, value in numbers.values_by_method.items())
    warning = f" ({numbers.warning})" if numbers.warning else ""
    return f"paper, {numbers.where}, {where}, {numbers.quantity}: {values}{warning}"


def _cost(work: Budget | None, hours: float | None) -> list[str]:
    if work is None:  # only a partition is looked at
        return [UNKNOWN] * 4
    spent = UNKNOWN if hours is None else f"{hours:,.1f}" if hours >= 0.1 else "< 0.1"
    return [str(work.runs), _short(work.gradients), f"{work.bytes / 1e9:,.1f}", spent]


def _short(number: float) -> str:
    """Three digits and a unit."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def hours(work: Budget, speed: Speed | None) -> float | None:
    """Hours that `work` takes at `speed`, None if that is not known."""
    return None if speed is None else speed.hours(work)
