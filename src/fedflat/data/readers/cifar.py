"""CIFAR's own files: the binary version, and the python version, which is pickled and is read without unpickling."""

from __future__ import annotations

import io
import pickle
import pickletools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from ..types import Index
from .file_search import find
from .layouts import Part, Shape
from .untrusted_files import MAX_OPCODES, MAX_SAMPLES, MAX_TUPLES, expect, file_error, in_one_line

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _BatchFiles(ABC):
    """The batches of the train and the test part, one file each."""

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
    """Records of `label_bytes` bytes, the last one the label, and 3,072 bytes of one picture."""

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
    """Dictionaries with `data` (n, 3072) and labels under the key `label`."""

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
    """Replaces numpy's array and its type while a file is read: keeps their arguments and runs no code of numpy.

    An array is created empty and then given a state or, from pickle's protocol 5 on, created from its parts.
    """

    _parts: tuple[Any, ...] = ()  # defaults of the class, because a file may create one without calling `__init__`
    _state: Any = ()

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def bytes(self) -> bytes | None:
        """Return the bytes of the array, row after row; None if it has another type of number or another order."""
        match (self._state, self._parts):
            case ((_, _, _Array(_parts=("u1" | b"u1", *_)), False | 0, bytes() as content), _):
                return content
            case (_, (bytes() | bytearray() as content, _Array(_parts=("u1" | b"u1", *_)), _, "C", *_)):
                return bytes(content)
        return None


class _OnlyArrays(pickle.Unpickler):
    """Reads containers, numbers, text and the few names of a numpy array; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": _Array, "_frombuffer": _Array, "ndarray": _Array, "dtype": _Array}
        if module.split(".", maxsplit=1)[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch needs")


def _unpickled(name: str, content: bytes) -> dict[object, object]:
    """Read the dictionary in a file."""
    try:
        _check_opcodes(content)
        batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged stream may fail in any way; no code of it was run
        raise file_error(name, f"truncated or not a CIFAR batch ({in_one_line(error)})") from error
    if not isinstance(batch, dict):
        raise file_error(name, "not a CIFAR batch")
    return batch


def _check_opcodes(content: bytes) -> None:
    """Raise ValueError for a pickle whose numbers ask for much memory, or whose depth asks for much stack."""
    tuples = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        tuples += opcode.name.startswith("TUPLE") or opcode.name == "FROZENSET"
        # The unpickler makes a table as large as the largest slot.
        slot = int(argument or 0) if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") else 0
        if max(number, slot) >= MAX_OPCODES or tuples > MAX_TUPLES:
            raise InputError("it has more parts than any batch")
