"""MATLAB files of SVHN (Netzer et al., 2011): pictures X (height, width, channels, n) and digits y (n, 1)."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from .file_search import find
from .layouts import Part, Shape
from .untrusted_files import MAX_FILE_BYTES, MAX_SAMPLES, expect, listed, parsing

ARRAYS = {"X": 4, "y": 2}  # number of axes


@dataclass(frozen=True)
class MatlabDigits:
    """`train_32x32.mat` and `test_32x32.mat`; the digit 0 has the label 10."""

    train: str = "train_32x32.mat"
    test: str = "test_32x32.mat"

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        readers = find(folder, [self.train, self.test])
        if readers is None:
            return None
        names = {"train": self.train, "test": self.test}
        return {part: _part(name, readers[name], shape) for part, name in names.items()}

    def __str__(self) -> str:
        return f"{self.train} and {self.test}"


def _part(name: str, read: Callable[[], bytes], shape: Shape | None) -> Part:
    """Return the pictures and digits of one file. Raises InputError, naming the file, for other arrays."""
    from scipy.io import loadmat, whosmat  # here, because it takes a while to import

    content = read()
    with parsing(name, "not a MATLAB file"):
        found = {array: (size, kind) for array, size, kind in whosmat(io.BytesIO(content))}  # type: ignore[arg-type]
    for array, axes in ARRAYS.items():  # before anything is unpacked
        size, kind = found.get(array, ((), "missing"))
        fits = len(size) == axes and kind == "uint8" and prod(size) <= MAX_FILE_BYTES
        expect(fits, name, f"{array} is {kind} of shape {listed([str(size)])}, expected uint8 with {axes} axes")
    with parsing(name, "truncated or damaged"):
        arrays = loadmat(io.BytesIO(content), variable_names=list(ARRAYS))  # type: ignore[arg-type]
    x, y = np.asarray(arrays["X"]).transpose(3, 2, 0, 1), np.asarray(arrays["y"])
    expected = (shape.channels, shape.size, shape.size) if shape is not None else x.shape[1:]
    expect(x.shape[1:] == expected and len(x) <= MAX_SAMPLES, name, f"has pictures of shape {x.shape}")
    expect(y.shape == (len(x), 1), name, f"has {len(x)} pictures and digits of shape {y.shape}")
    expect(not len(y) or (int(y.min()) >= 1 and int(y.max()) <= 10), name, "has a digit outside 1..10")
    return Part(y[:, 0].astype(np.int64) % 10, x)
