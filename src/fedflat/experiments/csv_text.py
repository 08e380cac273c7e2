"""Tables as CSV. A text that a spreadsheet would compute as a formula gets an apostrophe before it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets compute a cell that begins with one of these


def without_formula(cell: T) -> T | str:
    """Return the value of a cell; a text that begins like a formula gets an apostrophe before it."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def csv_line(cells: Iterable[object]) -> str:
    """Format a row of a CSV file; None is an empty cell, and a number has all its digits."""
    buffer = io.StringIO()
    # The writer ends a line with \r\n, and so it quotes a text that has \r or \n in it.
    csv.writer(buffer).writerow(["" if cell is None else without_formula(cell) for cell in cells])
    return buffer.getvalue().removesuffix("\r\n") + "\n"
