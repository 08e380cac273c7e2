"""Texts for a console that are shown without markup, and tables of such texts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ..core.errors import printable

NOTHING = "–"  # a cell without a number


def literal(text: str, style: str = "") -> Text:
    """Return `text` on one line, without markup and with control characters escaped.

    Labels, paths and settings come from users, files and networks: `[/x]` in one of them is shown as four characters.
    """
    return Text(printable(text), style=style)


def text_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Collection[str],
    *,
    unbroken: Collection[str] = (),
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """Return a table of `rows`, each with one text for each of `titles`.

    words: titles of the columns with words, aligned left; all others have numbers, aligned right.
    unbroken: titles of the columns that never wrap.
    """
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=title,
        title_justify="left",
        caption=literal(caption, "table.caption") if caption else None,
        caption_justify="left",
    )
    for name in titles:
        table.add_column(literal(name), justify="left" if name in words else "right", no_wrap=name in unbroken)
    for row in rows:
        table.add_row(*map(literal, row))
    return table
