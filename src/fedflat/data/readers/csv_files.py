"""Comma-separated files of texts: a class number from 1, then one or more columns of text, no header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .file_search import find
from .layout import Part, Shape
from .limits import MAX_ROW, MAX_SAMPLES
from .untrusted_files import expect, file_error, in_one_line


@dataclass(frozen=True)
class Csv:
    """`train.csv` and `test.csv` as Zhang et al. (2015) published them."""

    columns: int  # of text, after the class number

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        readers = find(folder, ["train.csv", "test.csv"])
        if readers is None:
            return None
        return {name.removesuffix(".csv"): self._part(name, read()) for name, read in readers.items()}

    def _part(self, name: str, content: bytes) -> Part:
        labels, texts = [], []
        for i, row in enumerate(_rows(name, content)):
            # Nine digits are more than any class number has, and fewer than Python is slow to read or refuses.
            fits = len(row) == 1 + self.columns and row[0].isdecimal() and len(row[0]) < 10 and int(row[0]) >= 1
            expect(fits, name, f"row {i + 1} is not a class number from 1 and {self.columns} texts")
            expect(i < MAX_SAMPLES, name, f"more than {MAX_SAMPLES:,} rows")
            labels.append(int(row[0]) - 1)
            texts.append(join_texts(row[1:]))
        return Part(np.array(labels, dtype=np.int64), texts)

    def __str__(self) -> str:
        return "train.csv and test.csv"


def join_texts(texts: list[str]) -> str:
    """The text columns of one row, such as title and body, as one text."""
    return " ".join(text for text in texts if text)


def _rows(name: str, content: bytes) -> Iterator[list[str]]:
    """The rows of a file. `strict`, because a text that is cut off inside quotes would otherwise pass as whole."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="replace", newline="")
    row_length = 0  # characters of the current row so far

    def lines() -> Iterator[str]:
        """The lines of the file; the csv module itself has no limit for the fields and lines of a row."""
        nonlocal row_length
        while line := text.readline(MAX_ROW + 1):
            row_length += len(line)
            expect(row_length <= MAX_ROW, name, f"a row of more than {MAX_ROW:,} characters")
            expect("\0" not in line, name, "not a text: it has a zero byte")
            yield line

    try:
        for row in csv.reader(lines(), strict=True):
            yield row
            row_length = 0
    except csv.Error as error:
        raise file_error(name, f"truncated or not comma-separated ({in_one_line(error)})") from error
