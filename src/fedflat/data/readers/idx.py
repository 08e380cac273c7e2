"""The idx files of MNIST and its relatives (LeCun, 1998): a big-endian header, then bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .file_search import Reader, find
from .layout import Part, Shape
from .limits import MAX_FILE_BYTES, MAX_SAMPLES
from .untrusted_files import expect


@dataclass(frozen=True)
class Idx:
    """`PREFIXtrain-images-idx3-ubyte` and its three companions, plain, gzipped or in an archive."""

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
        y, x = _array(labels, readers[labels](), 1), _array(images, readers[images](), 3)
        expect(len(y) <= MAX_SAMPLES, labels, f"{len(y):,} labels; at most {MAX_SAMPLES:,} are read")
        expect(len(x) == len(y), images, f"{len(x)} images, but {labels} has {len(y)} labels")
        if shape is not None:
            fits = x.shape[1:] == (shape.size, shape.size)
            expect(fits, images, f"pictures of {x.shape[1]} x {x.shape[2]}, expected {shape.size} x {shape.size}")
        x = x.transpose(0, 2, 1) if self.transposed else x
        return Part(labels=y.astype(np.int64), samples=x[:, None])

    def __str__(self) -> str:
        return f"{self._names('train')[0]}[.gz] and its companions"


def _array(name: str, content: bytes, dimensions: int) -> NDArray[np.uint8]:
    """The array of bytes that an idx file holds."""
    start = 4 + 4 * dimensions
    expect(len(content) >= start, name, "truncated: shorter than its header")
    zeros, kind, found = struct.unpack(">HBB", content[:4])
    expect((zeros, kind, found) == (0, 8, dimensions), name, f"not an idx file of bytes with {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expect(len(content) - start == prod(shape), name, f"truncated: {len(content) - start} bytes of {prod(shape)}")
    sides = prod(side or 1 for side in shape)  # numpy refuses an empty array with a huge side
    expect(sides <= MAX_FILE_BYTES, name, f"its header says {' x '.join(map(str, shape))}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
