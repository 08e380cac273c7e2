"""Parquet in the layout of the Hugging Face hub: `train-00000-of-00002.parquet`, pictures as encoded bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..federated import Index
from .bounded import opened
from .bounds import ENCODED, ENTRIES, FOOTER, SAMPLES, TEXT, allowed
from .found import plain_files
from .pages import check, groups
from .part import Part, Shape, expect, listed, parsing
from .pictures import decoded
from .tables import joined

NAME = re.compile(r"(train|test)(?:-(\d+)-of-(\d+))?(?:-[0-9a-f]+)?\.parquet")
ROWS_AT_ONCE = 1024
LIMITS = {"thrift_string_size_limit": FOOTER, "thrift_container_size_limit": ENTRIES}
Files = Mapping[Path, pq.ParquetFile]
Values = Callable[[Path, pq.ParquetFile, str], list[str]]  # path, file, name of the column


@dataclass(frozen=True)
class Parquet:
    """The names of the columns."""

    label: str = "label"
    image: str | None = None
    text: tuple[str, ...] = ()
    domain: str | None = None
    user: str | None = None

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        split: dict[str, list[tuple[int, int, Path]]] = {}  # of each part: place, how many there are, file
        for path in plain_files(folder):
            if match := NAME.fullmatch(path.name):
                split.setdefault(match[1], []).append((int(match[2] or 0), int(match[3] or 1), path))
        return {part: self._part(_in_order(files), shape) for part, files in split.items()} or None

    def _part(self, files: list[Path], shape: Shape | None) -> Part:
        tables = {path: _opened(path, self._leaves()) for path in files}
        rows = sum(file.metadata.num_rows for file in tables.values())
        expect(rows <= SAMPLES, str(files[0]), f"its part has {rows:,} rows; at most {SAMPLES:,} are read")
        labels = np.concatenate([_numbers(path, file, self.label) for path, file in tables.items()])
        groups = [None if key is None else _all(tables, key, _names) for key in (self.domain, self.user)]
        if self.image is None or shape is None:
            texts = zip(*(_all(tables, key, _texts) for key in self.text), strict=True)
            return Part(labels, [joined(list(row)) for row in texts], *groups)
        for path, file in tables.items():
            _picture_type(path, file, self.image)
        return Part(labels, decoded(_pictures(tables, self.image), shape), *groups)

    def _leaves(self) -> list[str]:
        """The columns, and that of the encoded bytes inside that of pictures."""
        return self._columns() + ([] if self.image is None else [f"{self.image}.bytes"])

    def _columns(self) -> list[str]:
        wanted = (self.label, self.image, *self.text, self.domain, self.user)
        return [name for name in wanted if name is not None]

    def __str__(self) -> str:
        return f"train-*.parquet with columns {', '.join(self._columns())}"


def _in_order(files: list[tuple[int, int, Path]]) -> list[Path]:
    """The files of a part. Raises InputError unless each of as many as their names say is there once."""
    files = sorted(files)
    _, number, path = files[0]
    whole = [file[:2] for file in files] == [(i, number) for i in range(number)]
    expect(whole, str(path), f"there are {len(files)} of its part's {number} file(s), or one of them twice")
    return [path for _, _, path in files]


def _opened(path: Path, leaves: list[str]) -> pq.ParquetFile:
    """A file with columns of those names; what it may ask for is checked before anything of it is unpacked.

    Its texts and pictures are read as dictionaries, so that a value that a file has once is in memory once.
    """
    with opened(path) as raw, parsing(str(path), "truncated or not parquet"):
        found = groups(raw)
        file = pq.ParquetFile(path, **LIMITS)
        there = file.schema_arrow.names
        for name in leaves:
            once = "." in name or there.count(name) == 1
            expect(once, str(path), f"has no column {name!r}, or several; it has {listed(there)}")
        columns = [file.schema.column(i) for i in range(len(file.schema.names))]
        for group in found:
            expect(len(group.chunks) == len(columns), str(path), "a group of its rows has other columns")
            for column, chunk in zip(columns, group.chunks, strict=True):
                if column.path in leaves and group.rows:  # no page is read for no rows, and none need be there
                    with parsing(f"{path}, column {column.path.split('.')[0]!r}"):
                        check(raw, *chunk)
        varied = [column.path for column in columns if column.path in leaves and column.physical_type == "BYTE_ARRAY"]
        return pq.ParquetFile(path, read_dictionary=varied, pre_buffer=False, **LIMITS)


def _all(files: Files, name: str, values: Values) -> list[str]:
    """One column of all files, its values made by `values`."""
    return [value for path, file in files.items() for value in values(path, file, name)]


def _numbers(path: Path, file: pq.ParquetFile, name: str) -> Index:
    """A column of class numbers, (n,)."""
    kind = file.schema_arrow.field(name).type
    expect(pa.types.is_integer(kind), str(path), f"column {name!r} holds {_said(kind)}, expected class numbers")
    with parsing(f"{path}, column {name!r}"):
        return _read(path, file, name).cast(pa.int64()).to_numpy()


def _texts(path: Path, file: pq.ParquetFile, name: str) -> list[str]:
    """A column of texts; those that a file has once are in memory once, and all together are no more than allowed."""
    kind = _plain(file.schema_arrow.field(name).type)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    expect(text, str(path), f"column {name!r} holds {_said(kind)}, expected texts")
    most, total, found = allowed(path.stat().st_size), 0, []
    for chunk in _read(path, file, name).chunks:
        with parsing(f"{path}, column {name!r}"):
            words, places = chunk.dictionary.to_pylist(), chunk.indices.to_numpy()
        longest = max(map(len, words), default=0)
        expect(longest <= TEXT, str(path), f"column {name!r} has a text of {longest:,} characters, more than {TEXT:,}")
        total += int(np.array([len(word) for word in words], np.int64)[places].sum())
        expect(total <= most, str(path), f"column {name!r} unpacks to more than {most:,} characters")
        found += [words[place] for place in places]
    return found


def _names(path: Path, file: pq.ParquetFile, name: str) -> list[str]:
    """Texts as they are, numbers by the names that the file gives them, if it does."""
    kind = file.schema_arrow.field(name).type
    if not pa.types.is_integer(kind):
        return _texts(path, file, name)
    numbers, names = _numbers(path, file, name), _class_names(file, name)
    if not names:
        return [str(number) for number in numbers]
    inside = bool(((numbers >= 0) & (numbers < len(names))).all())
    expect(inside, str(path), f"column {name!r} has more than its names")
    return [names[number] for number in numbers]


def _class_names(file: pq.ParquetFile, name: str) -> list[str]:
    """The names of a class-number column, from the hub's description in the file; empty if there are none."""
    try:
        described = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        names = described["info"]["features"][name]["names"]
        return [str(names[str(i)]) for i in range(len(names))] if isinstance(names, dict) else [str(n) for n in names]
    except (ValueError, KeyError, TypeError, RecursionError):  # not described, or in some other way
        return []


def _picture_type(path: Path, file: pq.ParquetFile, name: str) -> None:
    """Raise InputError unless a column holds encoded pictures, as bytes or as the hub's pairs of bytes and path."""
    kind = file.schema_arrow.field(name).type
    inner = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    fits = pa.types.is_binary(_plain(inner)) or pa.types.is_large_binary(_plain(inner))
    expect(fits, str(path), f"column {name!r} holds {_said(kind)}, expected pictures as bytes")


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, any other as it is."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _said(kind: pa.DataType) -> str:
    return listed([str(_plain(kind))])


def _read(path: Path, file: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    """A column with a value in every row."""
    with parsing(f"{path}, column {name!r}"):
        column = file.read(columns=[name])[name]
        column.validate(full=True)  # places in a dictionary are not checked by reading
    expect(column.null_count == 0, str(path), f"column {name!r} has rows without a value")
    expect(len(column) == file.metadata.num_rows, str(path), f"column {name!r} has {len(column):,} rows")
    return column


def _pictures(files: Files, column: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """A name for messages and the encoded bytes of every picture, a few rows in memory at a time."""
    for path, file in files.items():
        row = 0
        for some in _batches(path, file, column):
            pictures = some.column(0)
            for place in range(len(pictures)):
                name = f"{path}, column {column!r}, row {row}"
                yield name, partial(_encoded, name, pictures, place)
                row += 1


def _encoded(name: str, pictures: pa.Array, place: int) -> bytes:
    """The bytes of one picture of a batch; made only now, as a file may have one picture in all its rows."""
    value = pictures[place]
    value = value["bytes"] if isinstance(value, pa.StructScalar) and value.is_valid else value
    content: bytes = (value.as_py() if value.is_valid else None) or b""
    expect(len(content) <= ENCODED, name, f"a picture of {len(content):,} bytes; at most {ENCODED:,} are read")
    return content


def _batches(path: Path, file: pq.ParquetFile, column: str) -> Iterator[pa.RecordBatch]:
    inner = f"{column}.bytes" if pa.types.is_struct(file.schema_arrow.field(column).type) else column
    batches = file.iter_batches(ROWS_AT_ONCE, columns=[inner])
    while True:
        with parsing(f"{path}, column {column!r}"):
            some = next(batches, None)
            if some is not None:
                some.validate(full=True)
        if some is None:
            return
        yield some
