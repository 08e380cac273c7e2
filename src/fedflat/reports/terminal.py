"""The comparison as text."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from ..core.errors import printable
from .columns import Column, caption, columns, target_columns
from .comparison import Comparison
from .literal import literal


def as_table(comparison: Comparison) -> Table:
    """The comparison for a rich console."""
    return _table(comparison, columns(comparison), caption(comparison))


def target_tables(comparison: Comparison) -> list[Table]:
    """What it took to reach each target."""
    return [_table(comparison, target_columns(comparison, place)) for place in range(len(comparison.targets))]


def _table(comparison: Comparison, cells: list[Column], caption: str | None = None) -> Table:
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


def as_text(comparison: Comparison, width: int = 150) -> str:
    """The comparison as plain lines."""
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as captured:
        console.print(as_table(comparison), *target_tables(comparison), sep="\n")
    return "\n".join([captured.get().rstrip(), *map(printable, comparison.notes)])
