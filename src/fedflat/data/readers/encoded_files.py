"""The Hugging Face hub's parquet files with encoded pictures or texts.

This module is imported with the table of data sets, so it imports pyarrow and Pillow only when files are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..numbers import Array
from .file_search import plain_files
from .layouts import Part, Shape, join_texts
from .untrusted_files import MAX_SAMPLES, expect

if TYPE_CHECKING:
    from .parquet_columns import ColumnReader

PART = "train|test|valid|validation"
NAME = re.compile(rf"({PART})(?:-(\d+)-of-(\d+))?(?:-[0-9a-f]+)?\.parquet")
CONVERTED = re.compile(r"(\d{4})\.parquet")  # the hub's own conversion, in a folder with the name of the part
UNKNOWN = 0  # number of files of a part, where their names do not say it


@dataclass(frozen=True)
class Parquet:
    """Files such as `train-00000-of-00002.parquet`, with texts or encoded pictures; the fields are names of columns."""

    label: str = "label"
    image: str | None = None
    text: tuple[str, ...] = ()
    domain: str | None = None
    user: str | None = None
    own: bool = False  # a user's own files: labels may be texts, and class numbers get the names that files declare

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        return {part: self._part(paths, shape) for part, paths in parquet_parts(folder).items()} or None

    def _part(self, paths: list[Path], shape: Shape | None) -> Part:
        from .parquet_columns import ColumnReader, open_parquet
        from .pictures import decode_pictures

        inner = [] if self.image is None else [f"{self.image}.bytes"]  # where the hub's files have encoded pictures
        files = [(path, open_parquet(path, self._columns() + inner)) for path in paths]

        def columns(name: str) -> list[ColumnReader]:
            return [ColumnReader(path, file, name) for path, file in files]

        rows = sum(file.metadata.num_rows for _, file in files)
        expect(rows <= MAX_SAMPLES, str(paths[0]), f"its part has {rows:,} rows; at most {MAX_SAMPLES:,} are read")
        labels, names = self._labels(columns(self.label))
        domain, user = (
            None if name is None else [value for column in columns(name) for value in column.names()]
            for name in (self.domain, self.user)
        )
        if self.image is None or shape is None:
            texts = [[text for column in columns(name) for text in column.texts()] for name in self.text]
            return Part(labels, [join_texts(row) for row in zip(*texts, strict=True)], domain, user, names)
        encoded = chain.from_iterable([column.pictures() for column in columns(self.image)])
        return Part(labels, decode_pictures(encoded, shape), domain, user, names)

    def _labels(self, columns: list[ColumnReader]) -> tuple[Array, tuple[str, ...]]:
        """Return the labels of a part, (n,), and the names of class numbers if the files of the part declare names."""
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


def parquet_parts(folder: Path) -> dict[str, list[Path]]:
    """Return the files below `folder` that are named as parts of a set, in order; validation files if no test is there.

    Raises InputError if the names show that a file is missing or exists twice.
    """
    split: dict[str, list[tuple[int, int, Path]]] = {}  # the place of each file, the number of files, the path
    for path in plain_files(folder):
        if match := NAME.fullmatch(path.name):
            split.setdefault(match[1], []).append((int(match[2] or 0), int(match[3] or 1), path))
        elif (match := CONVERTED.fullmatch(path.name)) and path.parent.name in PART.split("|"):
            split.setdefault(path.parent.name, []).append((int(match[1]), UNKNOWN, path))
    valid = split.pop("validation", None) or split.pop("valid", None)
    if valid and "test" not in split:
        split["test"] = valid
    return {part: _in_order(split[part]) for part in ("train", "test") if part in split}


def _in_order(files: list[tuple[int, int, Path]]) -> list[Path]:
    """Sort the files of a part. Raises InputError if the names show that a file is missing or exists twice."""
    files = sorted(files)
    _, stated, path = files[0]
    number = stated or len(files)
    complete = [file[:2] for file in files] == [(i, stated) for i in range(number)]
    expect(complete, str(path), f"there are {len(files)} of its part's {number} file(s), or one of them twice")
    return [path for _, _, path in files]
