"""Parquet in the layout of the Hugging Face hub: `train-00000-of-00002.parquet`, pictures as encoded bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...core.errors import InputError
from .found import plain_files
from .part import Part, Shape, expect, in_one_line
from .pictures import decoded
from .tables import joined

NAME = re.compile(r"(train|test)(?:-(\d+)-of-(\d+))?(?:-[0-9a-f]+)?\.parquet")
ROWS_AT_ONCE = 1024
Files = Mapping[Path, pq.ParquetFile]
Values = Callable[[Path, pq.ParquetFile, str, pa.ChunkedArray], list[Any]]  # path, file, name of the column, column


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
        tables = {path: _opened(path, self._columns()) for path in files}
        labels = np.array(_column(tables, self.label, _numbers), dtype=np.int64)
        groups = [None if key is None else _column(tables, key, _names) for key in (self.domain, self.user)]
        if self.image is None or shape is None:
            rows = zip(*(_column(tables, key, _texts) for key in self.text), strict=True)
            return Part(labels, [joined(list(row)) for row in rows], *groups)
        return Part(labels, decoded(_pictures(tables, self.image), shape), *groups)

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


def _opened(path: Path, wanted: list[str]) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"data file {path}: truncated or not parquet") from error
    for name in wanted:
        there = ", ".join(file.schema_arrow.names)
        expect(name in file.schema_arrow.names, str(path), f"has no column {name!r}; it has {there}")
    return file


def _column(files: Files, name: str, values: Values) -> list[Any]:
    """One column of all files, its values made by `values`."""
    found: list[Any] = []
    for path, file in files.items():
        column = _read(path, file, name)
        expect(column.null_count == 0, str(path), f"column {name!r} has rows without a value")
        found += values(path, file, name, column)
    return found


def _numbers(path: Path, file: pq.ParquetFile, name: str, column: pa.ChunkedArray) -> list[int]:
    whole = pa.types.is_integer(column.type)
    expect(whole, str(path), f"column {name!r} holds {column.type}, expected class numbers")
    numbers: list[int] = column.to_pylist()
    return numbers


def _texts(path: Path, file: pq.ParquetFile, name: str, column: pa.ChunkedArray) -> list[str]:
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    expect(text, str(path), f"column {name!r} holds {column.type}, expected texts")
    texts: list[str] = column.to_pylist()
    return texts


def _names(path: Path, file: pq.ParquetFile, name: str, column: pa.ChunkedArray) -> list[str]:
    """Texts as they are, numbers by the names that the file gives them, if it does."""
    names = _class_names(file, name) if pa.types.is_integer(column.type) else []
    found = column.to_pylist()
    if not names:
        return [str(value) for value in found]
    expect(all(0 <= value < len(names) for value in found), str(path), f"column {name!r} has more than its names")
    return [names[value] for value in found]


def _class_names(file: pq.ParquetFile, name: str) -> list[str]:
    """The names of a class-number column, from the hub's description in the file; empty if there are none."""
    try:
        described = json.loads((file.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        names = described["info"]["features"][name]["names"]
        return [names[str(i)] for i in range(len(names))] if isinstance(names, dict) else [str(n) for n in names]
    except (ValueError, KeyError, TypeError):  # not described, or in some other way
        return []


def _read(path: Path, file: pq.ParquetFile, name: str) -> pa.ChunkedArray:
    try:
        return file.read(columns=[name])[name]
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"data file {path}, column {name!r}: truncated or damaged ({in_one_line(error)})") from error


def _pictures(files: Files, column: str) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """A name for messages and the encoded bytes of every picture, a few rows in memory at a time."""
    for path, file in files.items():
        row = 0
        for some in _batches(path, file, column):
            for value in some.column(0).to_pylist():
                content = value.get("bytes") if isinstance(value, dict) else value
                yield f"{path}, column {column!r}, row {row}", partial(bytes, content or b"")
                row += 1


def _batches(path: Path, file: pq.ParquetFile, column: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(ROWS_AT_ONCE, columns=[column])
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"data file {path}, column {column!r}: damaged ({in_one_line(error)})") from error
