"""What a finished study shows and leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from ..files import write_atomically
from ..reports.comparison import FinishedRun, compare
from ..reports.terminal import as_table


def show_comparison(console: Console, runs: Sequence[FinishedRun], target: float | None, folder: Path) -> None:
    """Print the comparison; write report.html, comparison.parquet and comparison.json to `folder`."""
    comparison = compare(runs, target=target)
    page = comparison.to_html(folder / "report.html")
    table = comparison.table()
    write_atomically(folder / "comparison.parquet", lambda path: pq.write_table(table, path))
    text = json.dumps(table.to_pylist(), indent=2)
    write_atomically(folder / "comparison.json", lambda path: path.write_text(text + "\n"))
    wide = console if console.is_terminal else Console(width=170)
    wide.print(as_table(comparison))
    for note in comparison.notes:
        console.print(note, highlight=False, soft_wrap=True)
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
