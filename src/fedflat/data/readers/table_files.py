"""Files of tables, read row by row as texts: csv and tsv, and jsonl with one object in each line."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ...core.errors import InputError
from .untrusted_files import MAX_ROW, expect, file_error, in_one_line, listed, open_regular, parsing

ROWS_AT_ONCE = 4096
MAX_COLUMNS = 10_000
DELIMITERS = (",", ";", "\t")
# Not "None", which is a category of many questionnaires.
MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "<NA>"})
Value = str | None  # None: the row has no value in this column
Column = tuple[Value, ...]


class TableFile(ABC):
    """One file with named columns."""

    def __init__(self, path: Path) -> None:
        """Read the names of the columns. Raises InputError, naming the file, if it cannot be read as a table."""
        self.path = path
        self.names = self._names()
        expect(0 < len(self.names) <= MAX_COLUMNS, str(path), f"{len(self.names):,} columns; 1 to {MAX_COLUMNS:,} are "
               "read")  # fmt: skip
        if twice := [name for name in self.names if self.names.count(name) > 1]:
            raise file_error(str(path), f"has several columns named {listed(twice[:1])!r}")

    def columns(self, names: Sequence[str]) -> Iterator[tuple[int, list[Column]]]:
        """Yield the number of the first row, from 1, and the values in the columns `names`, for some rows at a time.

        Raises InputError, naming the file, for a column that does not exist, and for a damaged row.
        """
        for name in names:
            expect(name in self.names, str(self.path), f"has no column {name!r}; it has {listed(self.names)}")
        rows, first = self._rows(names), 1
        while some := list(islice(rows, ROWS_AT_ONCE)):
            yield first, list(zip(*some, strict=True))
            first += len(some)

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names of the columns."""

    @abstractmethod
    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Value]]:
        """Yield the values of each row in the columns `names`."""


class CsvFile(TableFile):
    """A file whose first row names the columns; they are separated by commas, semicolons or tabulators."""

    def _names(self) -> list[str]:
        with open_regular(self.path) as file:
            first = next(text_lines(str(self.path), file), "")
        counts = {one: first.count(one) for one in DELIMITERS}
        self._delimiter = max(DELIMITERS, key=counts.__getitem__)
        names = next(iter(self._all_rows()), [])
        expect(bool(names), str(self.path), "is empty: its first row must name the columns")
        return names

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Value]]:
        places, rows = [self.names.index(name) for name in names], self._all_rows()
        next(rows)
        for number, row in enumerate(rows, start=1):
            if len(row) != len(self.names):
                raise file_error(str(self.path), f"row {number} has {len(row)} values, and the first row names "
                                 f"{len(self.names)} columns")  # fmt: skip
            yield [None if row[place].strip() in MISSING else row[place] for place in places]

    def _all_rows(self) -> Iterator[list[str]]:
        with open_regular(self.path) as file:
            yield from (row for row in csv_rows(str(self.path), file, self._delimiter) if row)


class JsonlFile(TableFile):
    """A file with one JSON object in each line: names and values, which are texts, numbers, true, false or null."""

    def _names(self) -> list[str]:
        names: dict[str, None] = {}
        for row in islice(self._objects(), ROWS_AT_ONCE):  # a name may be missing where it has no value
            names |= dict.fromkeys(row)
            expect(len(names) <= MAX_COLUMNS, str(self.path), f"has more than {MAX_COLUMNS:,} names")
        return list(names)

    def _rows(self, names: Sequence[str]) -> Iterator[Sequence[Value]]:
        for number, row in enumerate(self._objects(), start=1):
            yield [self._value(row.get(name), name, number) for name in names]

    def _value(self, value: Any, name: str, number: int) -> Value:
        if isinstance(value, bool):
            return "true" if value else "false"
        if not isinstance(value, str | None):
            problem = f"{listed([name])!r} is a list or an object; expected a text or a number"
            raise file_error(str(self.path), f"row {number}: {problem}")
        return None if value is None or value.strip() in MISSING else value

    def _objects(self) -> Iterator[dict[str, Any]]:
        with open_regular(self.path) as file:
            for number, line in enumerate(text_lines(str(self.path), file), start=1):
                if not line.strip():
                    continue
                with parsing(f"{self.path}, line {number}", "not JSON"):
                    row = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
                if not isinstance(row, dict):
                    raise file_error(
                        str(self.path), f'line {number} is no object such as {{"text": ..., "label": ...}}'
                    )
                yield row


def csv_rows(name: str, stream: IO[bytes], delimiter: str = ",", errors: str = "strict") -> Iterator[list[str]]:
    """Yield the rows of a file. Raises InputError, naming the file, also for a text that is cut off inside quotes.

    errors: what is done with bytes that are not UTF-8, as in `bytes.decode`.
    """
    length = 0  # characters of the current row so far

    def lines() -> Iterator[str]:
        """Yield the lines of the file. Raises InputError for a row that is too long: the csv module has no limit."""
        nonlocal length
        for line in text_lines(name, stream, errors):
            length += len(line)
            if length > MAX_ROW:
                raise file_error(name, f"a row of more than {MAX_ROW:,} characters")
            yield line

    try:
        for row in csv.reader(lines(), delimiter=delimiter, strict=True):
            yield row
            length = 0
    except csv.Error as error:
        kind = {",": "comma", ";": "semicolon", "\t": "tab"}[delimiter]
        raise file_error(name, f"truncated or not {kind}-separated ({in_one_line(error)})") from error


def text_lines(name: str, stream: IO[bytes], errors: str = "strict") -> Iterator[str]:
    """Yield the lines of a file of UTF-8, with their ends. Raises InputError, naming the file, for other contents."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors, newline="")
    try:
        while line := text.readline(MAX_ROW + 1):
            if len(line) > MAX_ROW:
                raise file_error(name, f"a row of more than {MAX_ROW:,} characters")
            if "\0" in line:
                raise file_error(name, "not a text: it has a zero byte")
            yield line
    except UnicodeDecodeError as error:
        raise InputError(f"data file {name}: is not UTF-8 (byte {error.start} of a piece); save it as UTF-8") from error
    finally:
        with suppress(ValueError):  # the file is closed already
            text.detach()  # the caller closes the file
