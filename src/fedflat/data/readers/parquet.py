"""Parquet in the layout of the Hugging Face hub: `train-00000-of-00002.parquet`, pictures as encoded bytes."""

from __future__ import annotations

import json
import re
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
from .csv_files import join_texts
from .file_search import plain_files
from .layout import Part, Shape
from .limits import MAX_ENCODED_BYTES, MAX_ENTRIES, MAX_FOOTER_BYTES, MAX_SAMPLES, MAX_TEXT, file_limit
from .parquet_headers import check_pages, row_groups
from .pictures import decode_pictures, picture_shape
from .untrusted_files import expect, file_error, listed, open_regular, parsing

NAME = re.compile(r"(train|test)(?:-(\d+)-of-(\d+))?(?:-[0-9a-f]+)?\.parquet")
ROWS_AT_ONCE = 1024
LIMITS = {"thrift_string_size_limit": MAX_FOOTER_BYTES, "thrift_container_size_limit": MAX_ENTRIES}


@dataclass(frozen=True)
class Parquet:
    """The names of the columns."""

    label: str = "label"
    image: str | None = None
    text: tuple[str, ...] = ()
    domain: str | None = None
    user: str | None = None
    own: bool = False  # a user's own files: labels may be texts, and class numbers have the names that files declare

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        # Of each part's files: the place of the file, the number of files, its path.
        split: dict[str, list[tuple[int, int, Path]]] = {}
        for path in parquet_files(folder):
            if match := NAME.fullmatch(path.name):
                split.setdefault(match[1], []).append((int(match[2] or 0), int(match[3] or 1), path))
        return {part: self._part(_in_order(files), shape) for part, files in split.items()} or None

    def _part(self, paths: list[Path], shape: Shape | None) -> Part:
        inner = [] if self.image is None else [f"{self.image}.bytes"]  # where the hub's files have encoded pictures
        files = [(path, _open(path, self._columns() + inner)) for path in paths]

        def columns(name: str) -> list[_Column]:
            return [_Column(path, file, name) for path, file in files]

        rows = sum(file.metadata.num_rows for _, file in files)
        expect(rows <= MAX_SAMPLES, str(paths[0]), f"its part has {rows:,} rows; at most {MAX_SAMPLES:,} are read")
        labels, names = self._labels(columns(self.label))
        domain, user = (
            None if name is None else [value for column in columns(name) for value in column.names()]
            for name in (self.domain, self.user)
        )
        if self.image is None or shape is None:
            texts = [[text for column in columns(name) for text in column.texts()] for name in self.text]
            return Part(labels, [join_texts(list(row)) for row in zip(*texts, strict=True)], domain, user, names)
        pictures = columns(self.image)
        for column in pictures:
            column.expect_pictures()
        encoded = (picture for column in pictures for picture in column.pictures())
        return Part(labels, decode_pictures(encoded, shape), domain, user, names)

    def _labels(self, columns: list[_Column]) -> tuple[Array, tuple[str, ...]]:
        """Return the labels of a part, (n,), and the names of class numbers if its files declare them."""
        if not self.own:
            return np.concatenate([column.numbers() for column in columns]), ()
        found = [column.labels() for column in columns]
        declared = {(some.dtype.kind, *column.class_names()) for some, column in zip(found, columns, strict=True)}
        expect(len(declared) == 1, str(columns[0].path), "and other files of its part: kinds or names of labels differ")
        return np.concatenate(found), declared.pop()[1:]

    def _columns(self) -> list[str]:
        names = (self.label, self.image, *self.text, self.domain, self.user)
        return [name for name in names if name is not None]

    def __str__(self) -> str:
        return f"train-*.parquet with columns {', '.join(self._columns())}"


def parquet_files(folder: Path) -> list[Path]:
    """The files below `folder` that are named as parts of a set."""
    return [path for path in plain_files(folder) if NAME.fullmatch(path.name)]


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns of a file. Raises InputError, naming it, if it cannot be read."""
    names: list[str] = _open(path, []).schema_arrow.names
    return names


def first_picture(path: Path) -> tuple[str, tuple[int, int, int]]:
    """Find the first picture in the column `image`: its name, and its channels (1 or 3), width and height."""
    column = _Column(path, _open(path, ["image", "image.bytes"]), "image")
    column.expect_pictures()
    name, read = next(column.pictures(), (str(path), None))
    if read is None:
        raise file_error(name, "has no rows")
    return name, picture_shape(name, read)


def text_column(path: Path, name: str) -> list[str]:
    """Read the texts in a column of a file. Raises InputError, naming it, if there are none."""
    return _Column(path, _open(path, [name]), name).texts()


def picture_column(path: Path, name: str) -> tuple[int, Iterator[tuple[str, Callable[[], bytes]]]]:
    """Return the number of encoded pictures in a column, and their names with functions that read their bytes."""
    column = _Column(path, _open(path, [name, f"{name}.bytes"]), name)
    column.expect_pictures()
    return column.file.metadata.num_rows, column.pictures()


def _in_order(files: list[tuple[int, int, Path]]) -> list[Path]:
    """The files of a part. Raises InputError unless each of the files that their names count exists exactly once."""
    files = sorted(files)
    _, number, path = files[0]
    whole = [file[:2] for file in files] == [(i, number) for i in range(number)]
    expect(whole, str(path), f"there are {len(files)} of its part's {number} file(s), or one of them twice")
    return [path for _, _, path in files]


def _open(path: Path, columns: list[str]) -> pq.ParquetFile:
    """A file with these columns, some of them inside others; what it claims is checked before any page is unpacked.

    Texts and pictures are read as dictionaries, so that a value that a file holds once is in memory once.
    """
    with open_regular(path) as raw, parsing(str(path), "truncated or not parquet"):
        groups = row_groups(raw)
        file = pq.ParquetFile(path, **LIMITS)
        names = file.schema_arrow.names
        for name in columns:
            exists = "." in name or names.count(name) == 1
            expect(exists, str(path), f"has no column {name!r}, or several; it has {listed(names)}")
        schema = [file.schema.column(i) for i in range(len(file.schema.names))]
        for group in groups:
            expect(len(group.chunks) == len(schema), str(path), "a group of its rows has other columns")
            for column, chunk in zip(schema, group.chunks, strict=True):
                if column.path in columns and group.rows:  # a group without rows need not have a page
                    with parsing(f"{path}, column {column.path.split('.')[0]!r}"):
                        check_pages(raw, *chunk)
        varied = [column.path for column in schema if column.path in columns and column.physical_type == "BYTE_ARRAY"]
        return pq.ParquetFile(path, read_dictionary=varied, pre_buffer=False, **LIMITS)


@dataclass(frozen=True)
class _Column:
    """One column of one file."""

    path: Path
    file: pq.ParquetFile
    name: str

    @property
    def type(self) -> pa.DataType:
        return self.file.schema_arrow.field(self.name).type

    @property
    def label(self) -> str:
        """The column in an error message."""
        return f"{self.path}, column {self.name!r}"

    def expect(self, condition: bool, problem: str) -> None:
        """Raise InputError, naming file and column, unless `condition` holds."""
        expect(condition, str(self.path), f"column {self.name!r} {problem}")

    def numbers(self) -> Index:
        """Class numbers, (n,)."""
        self.expect(pa.types.is_integer(self.type), f"holds {_type_name(self.type)}, expected class numbers")
        with parsing(self.label):
            numbers: Index = self._read().cast(pa.int64()).to_numpy()
        return numbers

    def texts(self) -> list[str]:
        """Texts; each that the file holds once is in memory once, and together they are no longer than allowed."""
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
        """Read texts and numbers; numbers by the names that the file gives them, if it gives any."""
        if not pa.types.is_integer(self.type):
            return self.texts()
        numbers, names = self.numbers(), self.class_names()
        if not names:
            return list(numbers.tolist())
        named = bool(((numbers >= 0) & (numbers < len(names))).all())
        self.expect(named, "has more than its names")
        return [names[number] for number in numbers]

    def class_names(self) -> list[str]:
        """The names of class numbers, from the hub's description in the file; empty if there are none."""
        try:
            described = json.loads((self.file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
            names = described["info"]["features"][self.name]["names"]
            ordered = [names[str(i)] for i in range(len(names))] if isinstance(names, dict) else names
            return [str(name) for name in ordered]
        except (ValueError, KeyError, TypeError, RecursionError):  # not described, or in another form
            return []

    def expect_pictures(self) -> None:
        """Raise InputError unless the column holds encoded pictures: bytes, or the hub's pairs of bytes and path."""
        kind = self.type
        kind = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
        binary = pa.types.is_binary(_value_type(kind)) or pa.types.is_large_binary(_value_type(kind))
        self.expect(binary, f"holds {_type_name(self.type)}, expected pictures as bytes")

    def pictures(self) -> Iterator[tuple[str, Callable[[], bytes]]]:
        """Each picture's name for messages, and how to read its encoded bytes; few rows are in memory at a time."""
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
        """The whole column, with a value in every row."""
        with parsing(self.label):
            column = self.file.read(columns=[self.name])[self.name]
            column.validate(full=True)  # reading does not check the places in a dictionary
        self.expect(column.null_count == 0, "has rows without a value")
        self.expect(len(column) == self.file.metadata.num_rows, f"has {len(column):,} rows")
        return column


def _encoded(name: str, pictures: pa.Array, place: int) -> bytes:
    """The bytes of one picture of a batch; made only now, because a file may have one picture in all its rows."""
    value = pictures[place]
    value = value["bytes"] if isinstance(value, pa.StructScalar) and value.is_valid else value
    content: bytes = (value.as_py() if value.is_valid else None) or b""
    size = f"a picture of {len(content):,} bytes; at most {MAX_ENCODED_BYTES:,} are read"
    expect(len(content) <= MAX_ENCODED_BYTES, name, size)
    return content


def _value_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary; any other type unchanged."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _type_name(kind: pa.DataType) -> str:
    return listed([str(_value_type(kind))])
