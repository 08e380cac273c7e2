"""Comparisons and measures of flatness as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from ..core.errors import printable
from ..metrics.flatness import Flatness
from .columns import NOTHING, Column, caption, columns, measure_title, target_columns
from .comparison_data import ComparisonData
from .headline import headline
from .published_table import published_lines
from .text_table import text_table


def tables(comparison: ComparisonData) -> list[Table]:
    """All tables of the comparison."""
    return [as_table(comparison), *published_table(comparison), *target_tables(comparison)]


def as_table(comparison: ComparisonData) -> Table:
    """The comparison for a rich console."""
    return _table(comparison, columns(comparison), caption(comparison))


def target_tables(comparison: ComparisonData) -> list[Table]:
    """For each target that a run reached, what the methods spent to reach it."""
    found = [target_columns(comparison, place) for place in range(len(comparison.targets))]
    return [_table(comparison, some) for some in found if some]


def published_table(comparison: ComparisonData) -> list[Table]:
    """What a paper prints besides test accuracies, a column for each method; no table if it prints nothing else."""
    first = "the paper's other numbers"
    rows = [(line.title, *line.cells) for line in published_lines(comparison)]
    return [text_table((first, *(row.label for row in comparison.rows)), rows, (first,))] if rows else []


def as_text(comparison: ComparisonData, width: int = 150) -> str:
    """The comparison as plain lines, the most important one first."""
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(*tables(comparison), sep="\n")
    return "\n".join([printable(headline(comparison)), captured.get().rstrip(), *map(printable, comparison.notes)])


def flatness_table(flatness_of: Mapping[str, Flatness]) -> Table:
    """One row per run, one column per number that is not a single layer's (those have a slash in their names)."""
    names = dict.fromkeys(name for flatness in flatness_of.values() for name in flatness if "/" not in name)
    titles = ("run", *map(measure_title, names))
    rows = [
        (run, *(str(flatness[name]) if name in flatness else NOTHING for name in names))
        for run, flatness in flatness_of.items()
    ]
    caption = "± half of a 95 % interval, or the residual of an eigenvalue; in brackets, on how many of all samples"
    return text_table(titles, rows, ("run",), unbroken=titles, caption=caption)


def _table(comparison: ComparisonData, cells: list[Column], caption: str | None = None) -> Table:
    titles = [column.title for column in cells]
    rows = [[column.cell(row) for column in cells] for row in comparison.rows]
    return text_table(titles, rows, titles[:1], caption=caption)
