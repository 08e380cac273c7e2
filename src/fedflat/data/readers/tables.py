"""Comma-separated files of texts: a class number from 1, then one or more columns of text, no header."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.errors import InputError
from .found import find
from .part import Part, Shape, expect, in_one_line


@dataclass(frozen=True)
class Csv:
    """`train.csv` and `test.csv` as Zhang et al. (2015) published them."""

    columns: int  # of text, after the class number

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        found = find(folder, ["train.csv", "test.csv"])
        return found and {name.removesuffix(".csv"): self._part(name, read()) for name, read in found.items()}

    def _part(self, name: str, content: bytes) -> Part:
        rows = _rows(name, content)
        for i, row in enumerate(rows):
            fits = len(row) == 1 + self.columns and row[0].isdecimal() and int(row[0]) >= 1
            expect(fits, name, f"row {i + 1} is not a class number from 1 and {self.columns} texts")
        return Part(np.array([int(row[0]) - 1 for row in rows]), [joined(row[1:]) for row in rows])

    def __str__(self) -> str:
        return "train.csv and test.csv"


def _rows(name: str, content: bytes) -> list[list[str]]:
    """The rows of a file. `strict`, as a text that is cut off inside quotes would pass as whole otherwise."""
    try:
        return list(csv.reader(io.StringIO(content.decode("utf-8", errors="replace"), newline=""), strict=True))
    except csv.Error as error:
        raise InputError(f"data file {name}: truncated or not comma-separated ({in_one_line(error)})") from error


def joined(texts: list[str]) -> str:
    """Title and body as one text."""
    return " ".join(text for text in texts if text)
