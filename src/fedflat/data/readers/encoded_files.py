"""Folders of pictures, and the Hugging Face hub's parquet files with encoded pictures or texts.

This module is imported with the table of data sets, so it imports pyarrow and Pillow only when files are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..numbers import Array
from .file_search import plain_files
from .layouts import Part, Shape, join_texts
from .untrusted_files import MAX_ENCODED_BYTES, MAX_SAMPLES, expect, read_regular

if TYPE_CHECKING:
    from .parquet_columns import ColumnReader

NAME = re.compile(r"(train|test)(?:-(\d+)-of-(\d+))?(?:-[0-9a-f]+)?\.parquet")


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
        # Of each part's files: the place of the file, the number of files, its path.
        split: dict[str, list[tuple[int, int, Path]]] = {}
        for path in parquet_files(folder):
            if match := NAME.fullmatch(path.name):
                split.setdefault(match[1], []).append((int(match[2] or 0), int(match[3] or 1), path))
        return {part: self._part(_in_order(files), shape) for part, files in split.items()} or None

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


def parquet_files(folder: Path) -> list[Path]:
    """Return the files below `folder` that are named as parts of a set."""
    return [path for path in plain_files(folder) if NAME.fullmatch(path.name)]


def _in_order(files: list[tuple[int, int, Path]]) -> list[Path]:
    """Sort the files of a part. Raises InputError if the names show that a file is missing or exists twice."""
    files = sorted(files)
    _, number, path = files[0]
    complete = [file[:2] for file in files] == [(i, number) for i in range(number)]
    expect(complete, str(path), f"there are {len(files)} of its part's {number} file(s), or one of them twice")
    return [path for _, _, path in files]


SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


@dataclass(frozen=True)
class ImageFolders:
    """`DOMAIN/CLASS/picture.jpg`, perhaps below one more folder; classes are numbered in the order of their names."""

    domains: tuple[str, ...]  # names of the domains and of their folders

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        pictures = [path for path in plain_files(folder) if path.suffix.lower() in SUFFIXES]
        pictures = [path for path in pictures if path.parent.parent.name in self.domains]
        if not pictures or shape is None:
            return None
        from .pictures import decode_pictures

        classes = sorted({path.parent.name for path in pictures})
        domain = [path.parent.parent.name for path in pictures]
        missing = sorted(set(self.domains) - set(domain))
        expect(not missing, str(folder), f"has no pictures of domain {', '.join(missing)}")
        labels = np.array([classes.index(path.parent.name) for path in pictures])
        encoded = ((str(path), partial(read_regular, path, MAX_ENCODED_BYTES)) for path in pictures)
        return {"train": Part(labels, decode_pictures(encoded, shape), domain)}

    def __str__(self) -> str:
        return f"folders {self.domains[0]}/CLASS/*.jpg, ..."
