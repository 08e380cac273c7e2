"""Tables of a user's own, in csv or jsonl files: their rows as features, or as texts, with labels and clients."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, printable, shortened
from .labels import checked_names
from .numbers import Array
from .readers.site_files import SiteFile
from .readers.table_files import MISSING, Column, TableFile, Value
from .readers.untrusted_files import MAX_SAMPLES, expect, file_error, listed
from .schema import DEFAULT_LABEL, DEFAULT_USER, Schema

MAX_CATEGORIES = 100  # of a column that is not named as categorical
FEW_ROWS = 10  # in fewer rows each category may well occur only once
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
WHOLE = 2**53  # above it a float64 cannot hold every integer


@dataclass(frozen=True)
class TableRows:
    """Some rows of a table."""

    path: Path  # of their file
    places: Sequence[int]  # the number of each row in the file, from 1
    values: dict[str, Column]  # by column
    users: Sequence[Value] = ()  # the client of each row
    dropped: int = 0  # number of rows that were left out

    def without(self, broken: set[int]) -> TableRows:
        """Return the rows that are not among `broken`, which are numbered from 0."""
        kept = [i for i in range(len(self.places)) if i not in broken]
        values = {name: tuple(some[i] for i in kept) for name, some in self.values.items()}
        return replace(self, places=[self.places[i] for i in kept], values=values, dropped=len(broken))

    def refuse(self, i: int, column: str, problem: str) -> NoReturn:
        """Raise InputError, naming file, row and column."""
        raise file_error(str(self.path), f"row {self.places[i]}: {listed([column])!r} {problem}")

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return the numbers in a column, NaN where one is missing. Raises InputError for a text and for infinity."""
        values = ["nan" if value is None else value for value in self.values[name]]
        found = as_numbers(values)
        if found is None:
            place = next(i for i, value in enumerate(values) if as_numbers([value]) is None)
            self.refuse(place, name, f"has {_shown(values[place])}, which is not a number")
        return found


@dataclass(frozen=True)
class Table:
    """The files of one part, with what their rows mean."""

    files: tuple[SiteFile, ...]
    tables: tuple[TableFile, ...]
    schema: Schema

    @property
    def user(self) -> str | None:
        """The name of the column with clients; None if there is none."""
        has_default = all(DEFAULT_USER in table.names for table in self.tables)
        return self.schema.client_column or (DEFAULT_USER if has_default else None)

    def features(self) -> tuple[str, ...]:
        """Return the names of all columns that are neither label nor client.

        Raises InputError for a column without a name: it is often an index.
        """
        first = self.tables[0]
        found = tuple(name for name in first.names if name not in (*self.schema.label_names, self.user))
        expect("" not in found, str(first.path), "has a column without a name: write tables without an index, or state "
               "numeric_columns and categorical_columns")  # fmt: skip
        expect(bool(found), str(first.path), "has no column beside label and client")
        return found

    def rows(self, names: Sequence[str]) -> Iterator[TableRows]:
        """Yield the values in the columns `names`, of labels and of clients, without rows that are dropped.

        Raises InputError, naming file, row and column, for a missing value that is neither dropped nor filled in.
        """
        user = self.user
        wanted = (*names, *self.schema.label_names, *([] if user is None else [user]))
        for file, table in zip(self.files, self.tables, strict=True):
            if not self.schema.label_columns:
                expect(DEFAULT_LABEL in table.names, str(table.path), f"has no column {DEFAULT_LABEL!r}; it has "
                       f"{listed(table.names)}: say which has the labels, as data.label_columns")  # fmt: skip
            for first, columns in table.columns(wanted):
                places = range(first, first + len(columns[0]))
                some = self._kept(TableRows(table.path, places, dict(zip(wanted, columns, strict=True))), set(names))
                users = [file.client] * len(some.places) if user is None else some.values[user]
                yield replace(some, users=users)

    def _kept(self, rows: TableRows, features: set[str]) -> TableRows:
        """Return `rows` without those that miss a value, if these are dropped. Raises InputError if not allowed."""
        policy, broken = self.schema.missing, set[int]()
        may_miss = features if policy == "fill" and self.schema.text_column is None else set[str]()
        for name, values in rows.values.items():
            if None not in values or name in may_miss:
                continue
            missing = [i for i, value in enumerate(values) if value is None]
            if policy != "drop":
                hint = "fill fills in features only" if policy == "fill" else "set data.missing to drop or fill"
                rows.refuse(missing[0], name, f"has no value; {hint}")
            broken.update(missing)
        return rows.without(broken) if broken else rows


@dataclass
class ColumnFacts:
    """What is known of a column after its training rows were read."""

    name: str
    is_numeric: bool | None = None  # None: not stated, and so far every value was a number
    texts: set[str] = field(default_factory=set)  # different values, some only of a column that has too many
    has_numbers: bool = False
    other: str | None = None  # a value that is no number
    filled: int = 0  # number of rows with a value
    number: int = 0  # of numbers
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean

    def add(self, rows: TableRows) -> None:
        """Take in some rows."""
        values = [value for value in rows.values[self.name] if value is not None]
        self.filled += len(values)
        if self.is_numeric is True:
            self._add(rows.numbers(self.name))
        elif self.is_numeric is False:
            self.texts.update(values)
        elif values:
            self._find_out(values)

    def check(self, file: str) -> None:
        """Raise InputError, naming file and column, unless the column has numbers alone or a few texts alone."""
        column, hint = f"column {listed([self.name])!r}", "state numeric_columns and categorical_columns"
        expect(self.number > 0 or self.texts != set(), file, f"{column} has no value in any row")
        if self.other is not None:
            shown = f"such as {_shown(self.other)}"
            expect(not self.has_numbers, file, f"{column} has numbers, and texts {shown}: correct them, or {hint}")
            expect(DECIMAL_COMMA.fullmatch(self.other) is None, file, f"{column} has decimal commas, {shown}; write "
                   "decimal points")  # fmt: skip
            expect(len(self.texts) <= MAX_CATEGORIES, file, f"{column} has more than {MAX_CATEGORIES} different texts, "
                   f"{shown}: {hint}, without the columns that are not to be used")  # fmt: skip
        checked_names(tuple(sorted(self.texts)), f"category of {self.name}")
        found, names_rows = self.is_numeric is None, len(self.texts) == self.filled >= FEW_ROWS
        expect(not (found and names_rows), file, f"{column} has another text in each of its {self.filled} rows, such "
               f"as {_shown(self.other)}, as patients have numbers: {hint}, without it unless it is meant")  # fmt: skip

    def _find_out(self, values: Sequence[str]) -> None:
        found = as_numbers(values)
        if found is not None:
            self.has_numbers = True
            self._add(found)
            return
        different = set(values)
        others = sorted(text for text in different if as_numbers([text]) is None)
        self.has_numbers |= len(others) < len(different)
        self.other = self.other or others[0]
        if len(self.texts) <= MAX_CATEGORIES:
            self.texts |= different

    def _add(self, values: NDArray[np.float64]) -> None:
        """Update mean and squares by Chan, Golub and LeVeque (1983), which loses no digits of large numbers."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        mean, total = float(values.mean()), self.number + len(values)
        difference = mean - self.mean
        self.squares += float(((values - mean) ** 2).sum()) + difference**2 * self.number * len(values) / total
        self.mean += difference * len(values) / total
        self.number = total

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 for a column whose numbers are all equal."""
        found = float(np.sqrt(self.squares / max(self.number, 1)))
        return found if found > 1e-12 * abs(self.mean) and found > 0 else 1.0


def completed(table: Table) -> Schema:
    """Return the schema with everything that it does not state, as found in the training rows.

    Raises InputError, naming file and column, for a column that has neither numbers alone nor a few texts alone.
    """
    schema = table.schema
    stated = dict.fromkeys(schema.numeric_columns, True) | dict.fromkeys(schema.categorical_columns, False)
    names = tuple(stated) or table.features()
    if (
        stated
        and (schema.means or not schema.numeric_columns)
        and (schema.categories or not schema.categorical_columns)
    ):
        return schema
    facts = [ColumnFacts(name, stated.get(name)) for name in names]
    for rows in table.rows(names):
        for one in facts:
            one.add(rows)
    for one in facts:
        one.check(str(table.tables[0].path))
    numeric = [one for one in facts if one.is_numeric or (one.is_numeric is None and one.other is None)]
    categorical = [one for one in facts if one not in numeric]
    return schema.filled_in(
        numeric_columns=tuple(one.name for one in numeric),
        categorical_columns=tuple(one.name for one in categorical),
        categories=tuple(tuple(sorted(one.texts)) for one in categorical),
        means=tuple(one.mean for one in numeric),
        deviations=tuple(one.deviation for one in numeric),
    )


def features(rows: TableRows, schema: Schema) -> NDArray[np.float32]:
    """Return the features of rows, (n, width): scaled numbers, then one number, 0 or 1, for each category.

    A number that is missing becomes the mean, which is 0 after scaling; a category that is missing becomes zeros.
    Raises InputError, naming file, row and column, for a text that is no number or none of the categories.
    """
    parts: list[Array] = []
    for name, mean, deviation in zip(schema.numeric_columns, schema.means, schema.deviations, strict=True):
        parts.append(np.nan_to_num((rows.numbers(name) - mean) / deviation)[:, None])
    for name, known in zip(schema.categorical_columns, schema.categories, strict=True):
        place: dict[Value, int] = {None: len(known)} | {text: i for i, text in enumerate(known)}
        values = rows.values[name]
        if unknown := [i for i, value in enumerate(values) if value not in place]:
            rows.refuse(unknown[0], name, f"has {_shown(values[unknown[0]])}, which is none of its categories "
                        f"{listed(known)}")  # fmt: skip
        parts.append(np.eye(len(known) + 1, dtype=np.float32)[[place[value] for value in values], :-1])
    return np.concatenate(parts, axis=1, dtype=np.float32)


def features_to_predict(rows: TableRows, schema: Schema) -> NDArray[np.float32]:
    """Return the features of rows to predict, (n, width); no row is left out.

    Raises InputError as `features` does, and for a missing value unless those of training were filled in.
    """
    for name, values in rows.values.items():
        if schema.missing != "fill" and None in values:
            rows.refuse(values.index(None), name, "has no value; no training row was without one (data.missing)")
    return features(rows, schema)


def rows_of_table(table: Any, names: Sequence[Any], schema: Schema) -> TableRows:
    """Return the columns that the schema uses, of a table in memory with the columns `names`, as texts.

    Raises InputError for a column that is missing, or is there twice.
    """
    for name in schema.feature_columns:
        if list(names).count(name) != 1:
            problem = "several columns" if name in names else "no column"
            raise InputError(f"predict: x has {problem} {printable(name)!r}; it has {listed(map(str, names))}")
    categories = dict(zip(schema.categorical_columns, schema.categories, strict=True))
    values = {name: _as_column(table[name], categories.get(name, ())) for name in schema.feature_columns}
    return TableRows(Path("x"), range(1, len(next(iter(values.values()))) + 1), values)


def _as_column(column: Any, categories: Sequence[str]) -> Column:
    """Return values as the texts that a file has; true and false as one of the `categories` spells them."""

    def as_text(value: Any) -> Value:
        text = str(value)
        if value is None or text.strip() in MISSING:
            return None
        return text.lower() if text in ("True", "False") and text not in categories else text

    return tuple(map(as_text, column.to_pylist() if hasattr(column, "to_pylist") else column))


def labels_of(parts: dict[str, list[list[str]]], names: tuple[str, ...]) -> dict[str, Array]:
    """Convert labels, for each part one list of texts for each of the columns `names`, to numbers or names.

    One column: whole numbers int64 (n,) or other numbers float64 (n,) if all parts have numbers, else texts (n,).
    Several columns: numbers (n, k). Raises InputError, naming the column, for texts in several columns.
    """
    found = {part: [as_numbers(some) for some in columns] for part, columns in parts.items()}
    if len(names) > 1:
        for part, columns in found.items():
            for name, some in zip(names, columns, strict=True):
                if some is None:
                    raise InputError(f"data: {part}: label column {printable(name)!r} has a text; several label "
                                     "columns hold numbers")  # fmt: skip
        return {part: np.stack(columns, axis=1) for part, columns in found.items()}  # type: ignore[arg-type]
    one = {part: columns[0] for part, columns in found.items()}
    if any(some is None for some in one.values()):
        return {part: np.array(columns[0], dtype=np.str_) for part, columns in parts.items()}
    numbers = {part: some for part, some in one.items() if some is not None}
    whole = all((some == some.round()).all() and (abs(some) <= WHOLE).all() for some in numbers.values())
    return {part: some.astype(np.int64) if whole else some for part, some in numbers.items()}


def as_numbers(texts: Sequence[str]) -> NDArray[np.float64] | None:
    """Return the numbers that the texts spell; None if a text is none, or infinite. Underscores are refused."""
    try:
        found = np.array(texts, dtype=np.str_).astype(np.float64)
    except ValueError:
        return None
    return None if np.isinf(found).any() or any("_" in text for text in texts) else found


def check_number(number: int, path: Path) -> None:
    """Raise InputError, naming the file, for no rows at all or more than are read."""
    expect(0 < number <= MAX_SAMPLES, str(path), f"its part has {number:,} rows; 1 to {MAX_SAMPLES:,} are read")


def _shown(text: Any) -> str:
    return printable(shortened(repr(text), 40))
