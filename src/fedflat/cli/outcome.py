"""Comparisons of finished runs, shown on the terminal and left in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from ..files import write_atomically
from ..reports.comparison import compare
from ..reports.comparison_data import ComparisonData
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
        _write_numbers(chapter.comparison, folder / f"comparison{suffix}")
        if chapter.title:
            console.say(chapter.title, style="bold")
        console.show(as_table(chapter.comparison), *target_tables(chapter.comparison))
        console.say(*chapter.notes, *chapter.comparison.notes)
    console.say(f"report: {page}")


def _write_numbers(comparison: ComparisonData, path: Path) -> None:
    """Write the table of a comparison as PATH.parquet and PATH.json."""
    table = comparison.table()
    write_atomically(path.with_suffix(".parquet"), lambda file: pq.write_table(table, file))
    text = json.dumps(table.to_pylist(), indent=2)
    write_atomically(path.with_suffix(".json"), lambda file: file.write_text(text + "\n"))
