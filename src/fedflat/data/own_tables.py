"""A user's own tables as data sets: `csv` (also tsv) and `jsonl`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..core.progress import Progress
from .cache import Writer
from .conversion import SampleFormat, write_texts
from .numbers import NumberKind
from .own_folders import VOCABULARY, FolderDataset, stated_texts
from .readers.layouts import Part
from .readers.site_files import of_parts, site_files, users_of
from .readers.table_files import CsvFile, JsonlFile, TableFile
from .readers.untrusted_files import file_error, listed
from .schema import Schema
from .tables import Table, TableRows, check_number, completed, features, labels_of

TEXT = ("label_columns", "client_column", "text_column", "missing", "vocabulary")
FEATURES = ("label_columns", "client_column", "numeric_columns", "categorical_columns", "categories", "missing",
            "means", "deviations")  # fmt: skip


@dataclass(frozen=True)
class TableFolder(FolderDataset):
    """Tables in files of one format: features in columns, or texts in one column."""

    summary: str
    where: str
    suffixes: tuple[str, ...]
    reader: type[TableFile]
    text_column: str | None = None  # used if neither text nor features are stated, and the files have it

    def files(self, folder: Path) -> list[Path]:
        """Return the files of all parts."""
        return [file.path for file in site_files(folder, self.suffixes)]

    def stated_samples(self, form: SampleFormat) -> tuple[tuple[int, ...], NumberKind]:
        """Return shape and kind: those of texts if a column of texts is stated, else those of features."""
        schema = form.schema
        if schema.text_column is not None or (self.text_column is not None and not schema.width):
            return stated_texts(form)
        if schema.categorical_columns:
            schema.need(("categories",), "tables")
        if schema.numeric_columns or not schema.categorical_columns:
            schema.need(("numeric_columns", "means"), "tables")
        return (schema.width,), "floats"

    def convert(self, folder: Path, form: SampleFormat, writer: Writer, progress: Progress) -> dict[str, Part]:
        """Write features (n, width) or token numbers. Raises InputError, naming file, row and column."""
        form.refuse_image_size(", and these are tables")
        parts = self._parts(folder, form.schema)
        schema = parts["train"].schema
        if schema.text_column is None:
            form.refuse_text_options()
            schema = completed(parts["train"])
        form.schema.refuse(FEATURES if schema.text_column is None else TEXT, f"tables of {_kind(schema)}")
        found = {part: _read(writer, part, table, schema, progress) for part, table in parts.items()}
        writer.metadata["schema"] = schema.stated
        writer.metadata["notes"] = [f"{part}: dropped {one.dropped:,} rows without a value"
                                    for part, one in found.items() if one.dropped]  # fmt: skip
        labels = labels_of({part: one.labels for part, one in found.items()}, schema.label_names)
        users = users_of({part: one.users for part, one in found.items()})
        contents = {part: Part(labels[part], one.texts, user=users[part]) for part, one in found.items()}
        if schema.text_column is not None:
            write_texts(writer, contents, VOCABULARY, form)
        return contents

    def _parts(self, folder: Path, schema: Schema) -> dict[str, Table]:
        """Return the files of each part. Raises InputError if files of one set have other columns."""
        files = of_parts(site_files(folder, self.suffixes), folder)
        tables = {part: tuple(self.reader(file.path) for file in some) for part, some in files.items()}
        first = tables["train"][0]
        features = schema.feature_columns
        if not features and schema.text_column is None and self.text_column in first.names:
            schema = schema.filled_in(text_column=self.text_column)
        if not features and schema.text_column is None:
            for table in (one for some in tables.values() for one in some):
                if others := sorted(set(table.names) ^ set(first.names)):
                    raise file_error(str(table.path), f"has other columns than {first.path.name}: {listed(others)}; "
                                     "state numeric_columns and categorical_columns to use some only")  # fmt: skip
        return {part: Table(tuple(some), tables[part], schema) for part, some in files.items()}


@dataclass
class Content:
    """What was read of one part, beside its features."""

    labels: list[list[str]]  # for each label column
    users: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    dropped: int = 0  # number of rows that were left out

    def add(self, rows: TableRows, schema: Schema) -> None:
        """Append the labels, clients and texts of some rows."""
        for column, name in zip(self.labels, schema.label_names, strict=True):
            column.extend(map(str, rows.values[name]))
        self.users += map(str, rows.users)
        self.texts += map(str, rows.values[schema.text_column]) if schema.text_column is not None else []
        self.dropped += rows.dropped


def _read(writer: Writer, part: str, table: Table, schema: Schema, progress: Progress) -> Content:
    """Write the features of a part, if it has some, and return its labels, clients and texts."""
    content = Content([[] for _ in schema.label_names])
    if schema.text_column is not None:
        for some in table.rows([schema.text_column]):
            content.add(some, schema)
    else:
        with writer.rows(f"{part}-x", (schema.width,), np.float32) as rows:
            for some in table.rows(schema.feature_columns):
                rows.add(features(some, schema))
                content.add(some, schema)
                progress(part, rows.number, rows.number)
    check_number(len(content.users), table.files[0].path)
    return content


def _kind(schema: Schema) -> str:
    return "features" if schema.text_column is None else "texts"


CSV = TableFolder(
    summary="Tables of your own: csv or tsv files, of all clients or one for each, in the folder of `data_dir`.",
    where="train.csv (and test.csv), or one file for each client (and test/CLIENT.csv), with a row that names columns",
    suffixes=(".csv", ".tsv"),
    reader=CsvFile,
)
JSONL = TableFolder(
    summary="Texts or tables of your own: jsonl files, of all clients or one for each, in the folder of `data_dir`.",
    where='train.jsonl (and test.jsonl), or one file for each client, with lines {"text": ..., "label": ...}',
    suffixes=(".jsonl",),
    reader=JsonlFile,
    text_column="text",
)
