"""File layouts of data sets: the interface of a reader, and the readers of idx and csv files.

A reader returns the train and the test part of a data set: all labels at once, samples one by one.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .file_search import Reader, find
from .table_files import csv_rows
from .untrusted_files import MAX_FILE_BYTES, MAX_SAMPLES, expect

CHANNELS = (1, 3, 4)  # of pictures in arrays


@dataclass(frozen=True)
class Part:
    """The train or test part of a data set, as its files hold it."""

    labels: NDArray[Any]  # (n,) class indices; in a user's own files also texts (n,), or numbers (n,) or (n, k)
    samples: Iterable[Any]  # n pictures, uint8 (channels, height, width), or n texts, in the order of the labels
    domain: Sequence[str | int] | None = None  # name or number of the domain of each sample
    user: Sequence[str | int] | None = None  # name or number of the user of each sample
    class_names: tuple[str, ...] = ()  # of the class indices, if the files declare them


@dataclass(frozen=True)
class Shape:
    """The shape of a data set's pictures: given by its definition, or else by its first picture."""

    channels: int
    size: int  # height and width in pixels
    resize: bool = False  # resize the shorter side of photographs to size * 8 / 7, and cut out the central square
    first: str = ""  # name of the first picture: all must have as many channels; empty: pictures are converted


class Layout(Protocol):
    """One arrangement of files that a data set may come in."""

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        """Read the parts `train` and `test` in `folder`; return None if the files have another layout.

        `shape` is the shape of the pictures, None for texts. Raises InputError, naming the file, for a damaged file.
        """

    def __str__(self) -> str:
        """Return the files to look for, e.g. `train-*.parquet`."""


@dataclass(frozen=True)
class Idx:
    """The idx files of MNIST and its relatives (LeCun, 1998): a big-endian header, then bytes.

    The files are `PREFIXtrain-images-idx3-ubyte` and its three companions, plain, gzipped or in an archive.
    """

    prefix: str = ""
    test: str = "t10k"  # the beginning of the names of the test files
    transposed: bool = False  # EMNIST's files hold columns as rows

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        names = {part: self._names(stem) for part, stem in (("train", "train"), ("test", self.test))}
        readers = find(folder, [name for pair in names.values() for name in pair])
        if readers is None:
            return None
        return {part: self._part(*pair, readers, shape) for part, pair in names.items()}

    def _names(self, stem: str) -> tuple[str, str]:
        return f"{self.prefix}{stem}-images-idx3-ubyte", f"{self.prefix}{stem}-labels-idx1-ubyte"

    def _part(self, images: str, labels: str, readers: dict[str, Reader], shape: Shape | None) -> Part:
        y, x = _idx_array(labels, readers[labels](), 1), _idx_array(images, readers[images](), 3)
        expect(len(y) <= MAX_SAMPLES, labels, f"{len(y):,} labels; at most {MAX_SAMPLES:,} are read")
        expect(len(x) == len(y), images, f"{len(x)} images, but {labels} has {len(y)} labels")
        if shape is not None:
            fits = x.shape[1:] == (shape.size, shape.size)
            expect(fits, images, f"pictures of {x.shape[1]} x {x.shape[2]}, expected {shape.size} x {shape.size}")
        x = x.transpose(0, 2, 1) if self.transposed else x
        return Part(labels=y.astype(np.int64), samples=x[:, None])

    def __str__(self) -> str:
        return f"{self._names('train')[0]}[.gz] and its companions"


def _idx_array(name: str, content: bytes, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of bytes that an idx file holds."""
    start = 4 + 4 * dimensions
    expect(len(content) >= start, name, "truncated: shorter than its header")
    zeros, kind, found = struct.unpack(">HBB", content[:4])
    expect((zeros, kind, found) == (0, 8, dimensions), name, f"not an idx file of bytes with {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expect(len(content) - start == prod(shape), name, f"truncated: {len(content) - start} bytes of {prod(shape)}")
    sides = prod(side or 1 for side in shape)  # numpy refuses an empty array with a huge side
    expect(sides <= MAX_FILE_BYTES, name, f"its header says {' x '.join(map(str, shape))}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


@dataclass(frozen=True)
class Csv:
    """`train.csv` and `test.csv` as Zhang et al. (2015) published them.

    A row is a class number from 1, then one or more columns of text; the files have no header.
    """

    columns: int  # of text, after the class number

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        readers = find(folder, ["train.csv", "test.csv"])
        if readers is None:
            return None
        return {name.removesuffix(".csv"): self._part(name, read()) for name, read in readers.items()}

    def _part(self, name: str, content: bytes) -> Part:
        labels, texts = [], []
        for i, row in enumerate(csv_rows(name, io.BytesIO(content), errors="replace")):
            # Nine digits exceed any class number, and are few enough for Python to parse fast.
            fits = len(row) == 1 + self.columns and row[0].isdecimal() and len(row[0]) < 10 and int(row[0]) >= 1
            expect(fits, name, f"row {i + 1} is not a class number from 1 and {self.columns} texts")
            expect(i < MAX_SAMPLES, name, f"more than {MAX_SAMPLES:,} rows")
            labels.append(int(row[0]) - 1)
            texts.append(join_texts(row[1:]))
        return Part(np.array(labels, dtype=np.int64), texts)

    def __str__(self) -> str:
        return "train.csv and test.csv"


def join_texts(texts: Iterable[str]) -> str:
    """Join the text columns of one row, such as title and body."""
    return " ".join(text for text in texts if text)
