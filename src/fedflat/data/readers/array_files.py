"""Files of arrays: CIFAR's batches, binary or pickled, and a user's own npz files. No code in the files is run.

An npz file is a zip of npy files. Each npy file is read into memory within the limits for members of archives. Before
its bytes become an array, their number is compared with the shape and type in its header.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import tokenize
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...core.errors import InputError
from ..labels import values_of
from ..numbers import Array, stored
from ..types import Index
from .file_search import find, open_zip, read_zip_member
from .layouts import CHANNELS, Part, Shape
from .untrusted_files import (
    MAX_MEMBERS,
    MAX_OPCODES,
    MAX_SAMPLES,
    MAX_TUPLES,
    expect,
    file_error,
    in_one_line,
    listed,
    parsing,
)

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _BatchFiles(ABC):
    """The batches of the train and the test part; each batch is one file."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        readers = find(folder, [*self.train, *self.test])
        if readers is None:
            return None
        parts = {}
        for part, names in (("train", self.train), ("test", self.test)):
            labels, pictures = zip(*(self._batch(name, readers[name]()) for name in names), strict=True)
            parts[part] = Part(np.concatenate(labels), np.concatenate(pictures).reshape(-1, 3, 32, 32))
        return parts

    @abstractmethod
    def _batch(self, name: str, content: bytes) -> tuple[Index, NDArray[np.uint8]]:
        """Return labels (n,) and pixels (n, 3072) of the file `name`. Raises InputError if its content is damaged."""


@dataclass(frozen=True)
class BinaryBatches(_BatchFiles):
    """Batches of records: `label_bytes` bytes, whose last one is the label, then the 3,072 bytes of one picture."""

    label_bytes: int = 1

    def _batch(self, name: str, content: bytes) -> tuple[Index, NDArray[np.uint8]]:
        record = self.label_bytes + PIXELS
        complete = len(content) > 0 and len(content) % record == 0
        expect(complete, name, f"truncated: {len(content)} bytes are not a whole number of records of {record}")
        rows = np.frombuffer(content, np.uint8).reshape(-1, record)
        return rows[:, self.label_bytes - 1].astype(np.int64), rows[:, self.label_bytes :]

    def __str__(self) -> str:
        return f"{self.train[0]} (binary version)"


@dataclass(frozen=True)
class PythonBatches(_BatchFiles):
    """Batches that are pickled dictionaries: `data` (n, 3072), and a list of labels at the key that `label` names."""

    label: str = "labels"

    def _batch(self, name: str, content: bytes) -> tuple[Index, NDArray[np.uint8]]:
        batch = _unpickled(name, content)
        labels, data = (batch.get(key, batch.get(key.encode())) for key in (self.label, "data"))
        if not isinstance(labels, list):
            raise file_error(name, f"has no {self.label!r}, or not as CIFAR has it")
        if not isinstance(data, _Array):
            raise file_error(name, "has no 'data', or not as CIFAR has it")
        expect(all(type(label) is int for label in labels), name, f"{self.label!r} are not all whole numbers")
        valid = all(0 <= label < MAX_SAMPLES for label in labels)
        expect(valid, name, f"{self.label!r} has one that is no class number")
        pixels = data.bytes()
        if pixels is None:
            raise file_error(name, "'data' is not an array of bytes, row after row")
        expect(len(pixels) == PIXELS * len(labels), name, f"{len(pixels)} bytes of pixels for {len(labels)} labels")
        return np.array(labels, dtype=np.int64), np.frombuffer(pixels, np.uint8).reshape(-1, PIXELS)

    def __str__(self) -> str:
        return f"{self.train[0]} (python version)"


class _Array:
    """A stand-in for numpy's array and dtype while a file is read: it keeps their arguments and runs no code of numpy.

    A pickle creates an empty array and then sets its state or, from protocol 5 on, creates the array from its parts.
    """

    _parts: tuple[Any, ...] = ()  # defaults of the class, because a file may create one without calling `__init__`
    _state: Any = ()

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def bytes(self) -> bytes | None:
        """Return the bytes of the array, row after row; None for another dtype than uint8, or another order."""
        match (self._state, self._parts):
            case ((_, _, _Array(_parts=("u1" | b"u1", *_)), False | 0, bytes() as content), _):
                return content
            case (_, (bytes() | bytearray() as content, _Array(_parts=("u1" | b"u1", *_)), _, "C", *_)):
                return bytes(content)
        return None


class _OnlyArrays(pickle.Unpickler):
    """Unpickles containers, numbers, texts and numpy arrays; refuses names of any other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": _Array, "_frombuffer": _Array, "ndarray": _Array, "dtype": _Array}
        if module.split(".", maxsplit=1)[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch needs")


def _unpickled(name: str, content: bytes) -> dict[object, object]:
    """Read the dictionary in the pickled batch `name`. Raises InputError for any other content."""
    try:
        _check_opcodes(content)
        batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged stream may fail in any way; no code of it was run
        raise file_error(name, f"truncated or not a CIFAR batch ({in_one_line(error)})") from error
    if not isinstance(batch, dict):
        raise file_error(name, "not a CIFAR batch")
    return batch


def _check_opcodes(content: bytes) -> None:
    """Raise ValueError for a pickle that would need too much memory, or is nested too deep for the stack."""
    tuples = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        tuples += opcode.name.startswith("TUPLE") or opcode.name == "FROZENSET"
        # The unpickler makes a table as large as the largest slot.
        slot = int(argument or 0) if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") else 0
        if max(number, slot) >= MAX_OPCODES or tuples > MAX_TUPLES:
            raise InputError("it has more parts than any batch")


NAMES = ("x", "y", "domain", "user")
MAX_AXES = 8
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def npz_files(folder: Path) -> dict[str, Path]:
    """Return the npz file of each part in `folder`; subfolders are not searched."""
    return {part: folder / f"{part}.npz" for part in ("train", "test") if (folder / f"{part}.npz").is_file()}


def read_npz(path: Path) -> Part:
    """Read one file: x (n, *shape), y (n,) numbers or texts, or (n, ...) numbers, and optional domain and user (n,).

    Raises InputError, naming file and array, for anything else.
    """
    with parsing(str(path), "not a readable npz file"):
        arrays = _arrays(path)
    for name in ("x", "y"):
        expect(name in arrays, str(path), f"has no array {name!r}; x and y are needed")
    x, y = arrays["x"], arrays["y"]
    expect(x.dtype.kind not in "SU", str(path), "x has texts; give token numbers, or texts in a parquet file")
    expect(x.ndim >= 2 and len(x) > 0, str(path), f"x has shape {x.shape}, expected (n, ...)")
    expect(len(x) <= MAX_SAMPLES, str(path), f"x has {len(x):,} samples; at most {MAX_SAMPLES:,} are read")
    expect(y.shape[:1] == (len(x),) and y.ndim <= 3, str(path), f"y has shape {y.shape}, expected ({len(x)},)")
    groups = {name: _names(path, name, arrays[name], len(x)) for name in ("domain", "user") if name in arrays}
    return Part(y, _samples(path, x), groups.get("domain"), groups.get("user"))


def read_samples(path: Path) -> Array:
    """Read the array x (n, *shape) of a file, which may have no labels. Raises InputError as `read_npz` does."""
    with parsing(str(path), "not a readable npz file"):
        arrays = _arrays(path)
    expect("x" in arrays and arrays["x"].ndim >= 2, str(path), "has no array 'x' of shape (n, ...)")
    return _samples(path, arrays["x"])


@dataclass(frozen=True)
class MedicalNpz:
    """The npz file of a set of MedMNIST (Yang et al., 2023), with the arrays train_images, train_labels and so on.

    Its validation part is not read.
    """

    name: str  # of the file, without the suffix
    labels: int = 1  # for each picture; more than one: each is 0 or 1

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        path = folder / f"{self.name}.npz"
        if not path.is_file():
            return None
        with parsing(str(path), "not a readable npz file"):
            names = [f"{part}_{what}" for part in ("train", "test") for what in ("images", "labels")]
            arrays = _arrays(path, names)
        for name in names:
            expect(name in arrays, str(path), f"has no array {name!r}")
        return {part: self._part(path, arrays[f"{part}_images"], arrays[f"{part}_labels"], shape)
                for part in ("train", "test")}  # fmt: skip

    def _part(self, path: Path, x: Array, y: Array, shape: Shape | None) -> Part:
        x = x[..., None] if x.ndim == 3 else x
        expected = (len(x), *((shape.size, shape.size, shape.channels) if shape else ()))
        expect(x.dtype == np.uint8 and x.shape == expected, str(path), f"has pictures of shape {x.shape} {x.dtype}")
        expect(y.shape == (len(x), self.labels) and y.dtype.kind in "biu", str(path), f"has labels {y.shape} {y.dtype}")
        expect(len(x) <= MAX_SAMPLES, str(path), f"a part has {len(x):,} pictures; at most {MAX_SAMPLES:,} are read")
        labels = y[:, 0].astype(np.int64) if self.labels == 1 else y.astype(np.float32)
        return Part(labels, np.moveaxis(x, -1, 1))

    def __str__(self) -> str:
        return f"{self.name}.npz"


def _arrays(path: Path, names: Sequence[str] = NAMES) -> dict[str, Array]:
    """Read the arrays called `names`, if the file has them; other arrays are not read."""
    with open_zip(path) as archive:
        members = archive.infolist()
    expect(len(members) <= MAX_MEMBERS, str(path), f"more than {MAX_MEMBERS:,} arrays")
    named = {member.filename.removesuffix(".npy"): member for member in members}
    expect(len(named) == len(members), str(path), "has an array twice")
    return {name: _array(path, name, named[name]) for name in names if name in named}


def _array(path: Path, name: str, member: zipfile.ZipInfo) -> Array:
    """Read one array of numbers or texts. Raises InputError for other types, or a size that contradicts the header."""
    content = read_zip_member(path, member)
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    expect(version in HEADERS, str(path), f"{name} is of an unknown version of the npy format")
    shape, columns_first, kind = _header(version, stream)
    expect(kind.kind in "biufU" and kind.itemsize > 0, str(path), f"{name} holds {kind}, expected numbers")
    expect(len(shape) <= MAX_AXES and min(shape, default=1) >= 0, str(path), f"{name} has shape {listed([str(shape)])}")
    size = len(content) - stream.tell()
    fits = prod(shape) * kind.itemsize == size
    expect(fits, str(path), f"{name} says that it has shape {listed([str(shape)])} of {kind}, but has {size:,} bytes")
    flat = np.frombuffer(content, kind, offset=stream.tell())
    return flat.reshape(shape, order="F" if columns_first else "C")


def _header(version: tuple[int, int], stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return an array's shape, whether columns come first, and type. Raises ValueError for a malformed header."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy repairs headers that Python 2 wrote, and says so
            return HEADERS[version](stream)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError("its header cannot be read") from error


def _samples(path: Path, x: Array) -> Array:
    """Convert samples to one of the stored types. Raises InputError for pictures with their channels last."""
    last = x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS
    expect(not last, str(path), f"x has shape {x.shape}; pictures are (n, channels, height, width)")
    return stored(x, f"data file {path}: x")


def _names(path: Path, group: str, values: Array, number: int) -> list[str | int]:
    """Return the domain or user of each sample."""
    expect(values.shape == (number,), str(path), f"{group} has shape {values.shape}, expected ({number},)")
    found: list[str | int] = values_of(values, f"data file {path}: {group}").tolist()
    return found
