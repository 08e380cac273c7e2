"""Columns of a parquet file: class numbers, texts, and encoded pictures, read within the limits for untrusted files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..labels import values_of
from ..numbers import Array
from ..types import Index
from .parquet_headers import check_pages, row_groups
from .pictures import picture_shape
from .untrusted_files import (
    MAX_ENCODED_BYTES,
    MAX_ENTRIES,
    MAX_FOOTER_BYTES,
    MAX_TEXT,
    expect,
    file_error,
    file_limit,
    listed,
    open_regular,
    parsing,
)

ROWS_AT_ONCE = 1024
LIMITS = {"thrift_string_size_limit": MAX_FOOTER_BYTES, "thrift_container_size_limit": MAX_ENTRIES}


def parquet_columns(path: Path) -> list[str]:
    """Return the names of the columns of a file. Raises InputError, naming the file, if it cannot be read."""
    names: list[str] = open_parquet(path, []).schema_arrow.names
    return names


def first_picture(path: Path) -> tuple[str, tuple[int, int, int]]:
    """Return the name of the first picture in the column `image`, and its channels (1 or 3), width and height."""
    name, read = next(picture_column(path, "image")[1], (str(path), None))
    if read is None:
        raise file_error(name, "has no rows")
    return name, picture_shape(name, read)


def text_column(path: Path, name: str) -> list[str]:
    """Read the texts in a column of a file. Raises InputError, naming the file, if the column has no texts."""
    return ColumnReader(path, open_parquet(path, [name]), name).texts()


def picture_column(path: Path, name: str) -> tuple[int, Iterator[tuple[str, Callable[[], bytes]]]]:
    """Return the number of encoded pictures in a column, and for each its name and a function that reads its bytes."""
    column = ColumnReader(path, open_parquet(path, [name, f"{name}.bytes"]), name)
    return column.file.metadata.num_rows, column.pictures()


def open_parquet(path: Path, columns: list[str]) -> pq.ParquetFile:
    """Open a file that must have `columns` (dotted if nested); headers are checked before any page is unpacked.

    Texts and pictures are read in dictionary encoding, so that a value that many rows share is in memory only once.
    Raises InputError, naming the file, if the file is damaged or lacks one of the columns.
    """
    with open_regular(path) as raw, parsing(str(path), "truncated or not parquet"):
        groups = row_groups(raw)
        file = pq.ParquetFile(path, **LIMITS)
        names = file.schema_arrow.names
        for name in columns:
            exists = "." in name or names.count(name) == 1
            expect(exists, str(path), f"has no column {name!r}, or several; it has {listed(names)}")
        schema = [file.schema.column(i) for i in range(len(file.schema.names))]
        for rows, chunks in groups:
            expect(len(chunks) == len(schema), str(path), "a group of its rows has other columns")
            for column, chunk in zip(schema, chunks, strict=True):
                if column.path in columns and rows:  # a group without rows need not have a page
                    with parsing(f"{path}, column {column.path.split('.')[0]!r}"):
                        check_pages(raw, *chunk)
        varied = [column.path for column in schema if column.path in columns and column.physical_type == "BYTE_ARRAY"]
        return pq.ParquetFile(path, read_dictionary=varied, pre_buffer=False, **LIMITS)


@dataclass(frozen=True)
class ColumnReader:
    """One column of one file."""

    path: Path
    file: pq.ParquetFile
    name: str

    @property
    def type(self) -> pa.DataType:
        return self.file.schema_arrow.field(self.name).type

    @property
    def label(self) -> str:
        """Name of the column in messages."""
        return f"{self.path}, column {self.name!r}"

    def expect(self, condition: bool, problem: str) -> None:
        """Raise InputError, naming file and column, unless `condition` holds."""
        expect(condition, str(self.path), f"column {self.name!r} {problem}")

    def numbers(self) -> Index:
        """Read class numbers, (n,)."""
        self.expect(pa.types.is_integer(self.type), f"holds {_type_name(self.type)}, expected class numbers")
        with parsing(self.label):
            numbers: Index = self._read().cast(pa.int64()).to_numpy()
        return numbers

    def texts(self) -> list[str]:
        """Read texts. Equal texts share memory; raises InputError if their total length exceeds the limit."""
        kind = _value_type(self.type)
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        self.expect(text, f"holds {_type_name(kind)}, expected texts")
        limit, total, texts = file_limit(self.path.stat().st_size), 0, []
        for chunk in self._read().chunks:
            with parsing(self.label):
                different, places = chunk.dictionary.to_pylist(), chunk.indices.to_numpy()
            longest = max(map(len, different), default=0)
            self.expect(longest <= MAX_TEXT, f"has a text of {longest:,} characters, more than {MAX_TEXT:,}")
            total += int(np.array([len(text) for text in different], np.int64)[places].sum())
            self.expect(total <= limit, f"unpacks to more than {limit:,} characters")
            texts += [different[place] for place in places]
        return texts

    def labels(self) -> Array:
        """Read class numbers, or texts that name classes, (n,)."""
        kind = _value_type(self.type)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return values_of(self.texts(), f"data file {self.label}: label")
        return self.numbers()

    def names(self) -> list[str] | list[int]:
        """Read texts or numbers; numbers become the names that the file declares for them, if any."""
        if not pa.types.is_integer(self.type):
            return self.texts()
        numbers, names = self.numbers(), self.class_names()
        if not names:
            return list(numbers.tolist())
        named = bool(((numbers >= 0) & (numbers < len(names))).all())
        self.expect(named, "has a number without a name")
        return [names[number] for number in numbers]

    def class_names(self) -> list[str]:
        """Return the names of class numbers from the hub's description in the file; empty without a description."""
        try:
            described = json.loads((self.file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
            names = described["info"]["features"][self.name]["names"]
            ordered = [names[str(i)] for i in range(len(names))] if isinstance(names, dict) else names
            return [str(name) for name in ordered]
        except (ValueError, KeyError, TypeError, RecursionError):  # not described, or in another form
            return []

    def pictures(self) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Return the name of each picture, for messages, and a function that reads its encoded bytes.

        Raises InputError, before any picture is read, unless the column holds bytes, or the hub's pairs of bytes and
        path.
        """
        kind = self.type
        kind = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
        binary = pa.types.is_binary(_value_type(kind)) or pa.types.is_large_binary(_value_type(kind))
        self.expect(binary, f"holds {_type_name(self.type)}, expected pictures as bytes")
        return self._pictures()

    def _pictures(self) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Yield the items of `pictures`, read batch by batch."""
        inner = f"{self.name}.bytes" if pa.types.is_struct(self.type) else self.name
        batches = self.file.iter_batches(ROWS_AT_ONCE, columns=[inner])
        row = 0
        while True:
            with parsing(self.label):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
            for place in range(len(batch)):
                name = f"{self.label}, row {row}"
                yield name, partial(_encoded, name, batch.column(0), place)
                row += 1

    def _read(self) -> pa.ChunkedArray:
        """Read the column. Raises InputError unless it has a value in every row."""
        with parsing(self.label):
            column = self.file.read(columns=[self.name])[self.name]
            column.validate(full=True)  # reading does not check the places in a dictionary
        self.expect(column.null_count == 0, "has rows without a value")
        self.expect(len(column) == self.file.metadata.num_rows, f"has {len(column):,} rows")
        return column


def _encoded(name: str, pictures: pa.Array, place: int) -> bytes:
    """Return the bytes of one picture of a batch; only this one is copied, because a file may repeat a large one."""
    value = pictures[place]
    value = value["bytes"] if isinstance(value, pa.StructScalar) and value.is_valid else value
    content: bytes = (value.as_py() if value.is_valid else None) or b""
    size = f"a picture of {len(content):,} bytes; at most {MAX_ENCODED_BYTES:,} are read"
    expect(len(content) <= MAX_ENCODED_BYTES, name, size)
    return content


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary; any other type unchanged."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _type_name(kind: pa.DataType) -> str:
    return listed([str(_value_type(kind))])
