"""CIFAR's own files: the binary version, and the python version, which is pickled and is read without unpickling."""

from __future__ import annotations

import io
import pickle
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import InputError
from .bounds import OPCODES, SAMPLES, TUPLES
from .found import find
from .part import Part, Shape, expect, in_one_line, refusal

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class BinaryBatches:
    """Records of `label_bytes` bytes, the last one the label, and 3,072 bytes of one picture."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int = 1

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        found = find(folder, [*self.train, *self.test])
        if found is None:
            return None
        return {
            part: self._part([(name, found[name]()) for name in names])
            for part, names in (("train", self.train), ("test", self.test))
        }

    def _part(self, files: list[tuple[str, bytes]]) -> Part:
        record = self.label_bytes + PIXELS
        for name, content in files:
            whole = len(content) > 0 and len(content) % record == 0
            expect(whole, name, f"truncated: {len(content)} bytes are not a whole number of records of {record}")
        rows = np.concatenate([np.frombuffer(content, np.uint8).reshape(-1, record) for _, content in files])
        labels = rows[:, self.label_bytes - 1].astype(np.int64)
        return Part(labels, rows[:, self.label_bytes :].reshape(-1, 3, 32, 32))

    def __str__(self) -> str:
        return f"{self.train[0]} (binary version)"


@dataclass(frozen=True)
class PythonBatches:
    """Dictionaries with `data` (n, 3072) and labels under the key `label`."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    label: str = "labels"

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        found = find(folder, [*self.train, *self.test])
        if found is None:
            return None
        return {
            part: self._part([(name, found[name]()) for name in names])
            for part, names in (("train", self.train), ("test", self.test))
        }

    def _part(self, files: list[tuple[str, bytes]]) -> Part:
        batches = [_dictionary(name, content) for name, content in files]
        pairs = [self._pair(name, batch) for (name, _), batch in zip(files, batches, strict=True)]
        labels, pictures = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        return Part(labels.astype(np.int64), pictures.reshape(-1, 3, 32, 32))

    def _pair(self, name: str, batch: dict[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
        labels, data = (batch.get(key, batch.get(key.encode())) for key in (self.label, "data"))
        for key, value, kind in ((self.label, labels, list), ("data", data, _Array)):
            expect(isinstance(value, kind), name, f"has no {key!r}, or not as CIFAR has it")
        expect(all(type(label) is int for label in labels), name, f"{self.label!r} are not all whole numbers")
        outside = next((label for label in labels if not 0 <= label < SAMPLES), None)
        expect(outside is None, name, f"{self.label!r} has one that is no class number")
        pixels = data.bytes()
        expect(pixels is not None, name, "'data' is not an array of bytes, row after row")
        expect(len(pixels) == PIXELS * len(labels), name, f"{len(pixels)} bytes of pixels for {len(labels)} labels")
        return np.asarray(labels), np.frombuffer(pixels, np.uint8).reshape(-1, PIXELS)

    def __str__(self) -> str:
        return f"{self.train[0]} (python version)"


class _Array:
    """Stands for numpy's array, or its type, while a file is read: keeps what it is made of, runs nothing of numpy's.

    An array is made of nothing and then given a state, or, from pickle's protocol 5 on, made of its parts.
    """

    _parts: tuple[Any, ...] = ()  # here, as a file may make one without calling it
    _state: Any = ()

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def bytes(self) -> bytes | None:
        """The bytes of the array, row after row; None if it is of other numbers or in another order."""
        match (self._state, self._parts):
            case ((_, _, _Array(_parts=("u1" | b"u1", *_)), False | 0, bytes() as content), _):
                return content
            case (_, (bytes() | bytearray() as content, _Array(_parts=("u1" | b"u1", *_)), _, "C", *_)):
                return bytes(content)
        return None


class _OnlyArrays(pickle.Unpickler):
    """Reads containers, numbers, text and the few names of a numpy array; every other name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": _Array, "_frombuffer": _Array, "ndarray": _Array, "dtype": _Array}
        if module.split(".", maxsplit=1)[0] == "numpy" and name in known:
            return known[name]
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return lambda text, encoding: text.encode("latin1")
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no batch needs")


def _dictionary(name: str, content: bytes) -> dict[Any, Any]:
    try:
        _check_opcodes(content)
        batch = _OnlyArrays(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged stream may fail in any way; nothing of it was run
        raise refusal(name, f"truncated or not a CIFAR batch ({in_one_line(error)})") from error
    expect(isinstance(batch, dict), name, "not a CIFAR batch")
    return batch


def _check_opcodes(content: bytes) -> None:
    """Raises ValueError for a pickle that asks for more than its size: of memory by a number, of stack by its depth."""
    tuples = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        tuples += opcode.name.startswith("TUPLE") or opcode.name == "FROZENSET"
        slot = int(argument or 0) if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") else 0  # of a table as large
        if max(number, slot) >= OPCODES or tuples > TUPLES:
            raise InputError("it has more parts than any batch")
