"""Comparisons and measures of flatness as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from ..core.errors import printable
from ..metrics.flatness import Flatness
from .columns import NOTHING, Column, caption, columns, measure_title, target_columns
from .comparison_data import ComparisonData
from .headline import headline
from .literal import literal
from .published_table import published_lines


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
    lines = published_lines(comparison)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("the paper's other numbers", *(row.label for row in comparison.rows)):
        table.add_column(literal(title), justify="right" if table.columns else "left")
    for line in lines:
        table.add_row(*map(literal, (line.title, *line.cells)))
    return [table] if lines else []


def as_text(comparison: ComparisonData, width: int = 150) -> str:
    """The comparison as plain lines, the most important one first."""
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(*tables(comparison), sep="\n")
    return "\n".join([printable(headline(comparison)), captured.get().rstrip(), *map(printable, comparison.notes)])


def flatness_table(flatness_of: Mapping[str, Flatness]) -> Table:
    """One row per run, one column per number that is not a single layer's (those have a slash in their names)."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, caption="± half of a 95 % interval, or the residual of an eigenvalue"
    )
    names = dict.fromkeys(name for flatness in flatness_of.values() for name in flatness if "/" not in name)
    for title in ("run", *map(measure_title, names)):
        table.add_column(literal(title), justify="left" if title == "run" else "right", no_wrap=True)
    for run, flatness in flatness_of.items():
        cells = (str(flatness[name]) if name in flatness else NOTHING for name in names)
        table.add_row(literal(run), *map(literal, cells))
    return table


def _table(comparison: ComparisonData, cells: list[Column], caption: str | None = None) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=literal(caption, "table.caption") if caption else None,
        caption_justify="left",
    )
    for column in cells:
        table.add_column(literal(column.title), justify="left" if column is cells[0] else "right")
    for row in comparison.rows:
        table.add_row(*(literal(column.cell(row)) for column in cells))
    return table
