"""What finished studies show and leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from ..files import write_atomically
from ..reports.comparison import Comparison
from ..reports.page import Chapter, write_page
from ..reports.terminal import as_table, target_tables
from .console import Console

Shown = tuple[Comparison, str | None, Sequence[str]]  # a comparison, its title, and notes to it


def show(console: Console, chapters: Sequence[Shown], folder: Path, title: str | None = None) -> None:
    """Print the comparisons; write report.html, and each one's numbers as parquet and JSON, to `folder`."""
    pictures = sorted((folder / "landscape").glob("*.svg")) if len(chapters) == 1 else []
    page = write_page([Chapter(*chapter, pictures) for chapter in chapters], folder / "report.html", title)
    for number, (comparison, heading, notes) in enumerate(chapters, start=1):
        suffix = "" if len(chapters) == 1 else f"-{number}"
        _write_numbers(comparison, folder / f"comparison{suffix}")
        if heading:
            console.say(heading, style="bold")
        console.show(as_table(comparison), *target_tables(comparison))
        console.say(*notes, *comparison.notes)
    console.say(f"report: {page}")


def _write_numbers(comparison: Comparison, path: Path) -> None:
    table = comparison.table()
    write_atomically(path.with_suffix(".parquet"), lambda file: pq.write_table(table, file))
    text = json.dumps(table.to_pylist(), indent=2)
    write_atomically(path.with_suffix(".json"), lambda file: file.write_text(text + "\n"))
