"""Comparisons of finished runs, shown on the terminal and left in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from ..files import write_atomically
from ..reports.comparison import compare
from ..reports.page import Chapter, write_page
from ..reports.terminal import as_table, target_tables
from .console import Console

__all__ = ["Chapter", "compare", "show"]


def show(console: Console, chapters: Sequence[Chapter], folder: Path, title: str | None = None) -> None:
    """Print the comparisons; write report.html, and each one's numbers as parquet and JSON, to `folder`.

    The page of a single comparison has the pictures that `fedflat landscape` has left in `folder`, too.
    """
    if len(chapters) == 1:
        chapters = [replace(chapters[0], surfaces=sorted((folder / "landscape").glob("*.svg")))]
    page = write_page(chapters, folder / "report.html", title)
    for number, chapter in enumerate(chapters, start=1):
        suffix = "" if len(chapters) == 1 else f"-{number}"
        table = chapter.comparison.table()
        write_atomically(folder / f"comparison{suffix}.parquet", partial(pq.write_table, table))
        text = json.dumps(table.to_pylist(), indent=2) + "\n"
        write_atomically(folder / f"comparison{suffix}.json", partial(Path.write_text, data=text))
        if chapter.title:
            console.say(chapter.title, style="bold")
        console.show(as_table(chapter.comparison), *target_tables(chapter.comparison))
        console.say(*chapter.notes, *chapter.comparison.notes)
    console.say(f"report: {page}")
