"""Comma-separated files of texts: a class number from 1, then one or more columns of text, no header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .bounds import ROW, SAMPLES
from .found import find
from .part import Part, Shape, expect, in_one_line, refusal


@dataclass(frozen=True)
class Csv:
    """`train.csv` and `test.csv` as Zhang et al. (2015) published them."""

    columns: int  # of text, after the class number

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        found = find(folder, ["train.csv", "test.csv"])
        return found and {name.removesuffix(".csv"): self._part(name, read()) for name, read in found.items()}

    def _part(self, name: str, content: bytes) -> Part:
        labels, texts = [], []
        for i, row in enumerate(_rows(name, content)):
            # Nine digits are more than any class has, and less than what Python takes long to read or not at all.
            fits = len(row) == 1 + self.columns and row[0].isdecimal() and len(row[0]) < 10 and int(row[0]) >= 1
            expect(fits, name, f"row {i + 1} is not a class number from 1 and {self.columns} texts")
            expect(i < SAMPLES, name, f"more than {SAMPLES:,} rows")
            labels.append(int(row[0]) - 1)
            texts.append(joined(row[1:]))
        return Part(np.array(labels, dtype=np.int64), texts)

    def __str__(self) -> str:
        return "train.csv and test.csv"


def _rows(name: str, content: bytes) -> Iterator[list[str]]:
    """The rows of a file. `strict`, as a text that is cut off inside quotes would pass as whole otherwise."""
    lines = _Lines(name, content)
    try:
        for row in csv.reader(lines, strict=True):
            yield row
            lines.of_row = 0
    except csv.Error as error:
        raise refusal(name, f"truncated or not comma-separated ({in_one_line(error)})") from error


class _Lines:
    """The lines of a file for the csv module, which itself would take any number of fields and lines for one row."""

    def __init__(self, name: str, content: bytes) -> None:
        self._name = name
        self._text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="replace", newline="")
        self.of_row = 0  # characters that the present row has so far

    def __iter__(self) -> Iterator[str]:
        while line := self._text.readline(ROW + 1):
            self.of_row += len(line)
            expect(self.of_row <= ROW, self._name, f"a row of more than {ROW:,} characters")
            expect("\0" not in line, self._name, "not a text: it has a zero byte")
            yield line


def joined(texts: list[str]) -> str:
    """Title and body as one text."""
    return " ".join(text for text in texts if text)
