"""One file holds the state of a run between two rounds. Safetensors and JSON; nothing is ever unpickled."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import InputError
from ..files import write_atomically

FORMAT = 1
AT_ONCE = 32 * 2**20  # bytes of a stream that are held at once
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """A matrix of which only some rows are held at once."""

    shape: tuple[int, int]
    dtype: torch.dtype
    read: Callable[[int, int], Tensor]  # the rows (n, width) from one number to before another

    @classmethod
    def of(cls, x: Tensor | Stream) -> Stream:
        """`x` (n, width) as a stream."""
        return x if isinstance(x, Stream) else cls((x.shape[0], x.shape[1]), x.dtype, lambda start, end: x[start:end])

    def pieces(self) -> Iterator[Tensor]:
        """All rows, some after others."""
        step = rows_at_once(self.shape[1] * self.dtype.itemsize)
        for start in range(0, self.shape[0], step):
            yield self.read(start, min(start + step, self.shape[0]))


def rows_at_once(row_bytes: int) -> int:
    """How many rows of so many bytes are held at once."""
    return max(1, AT_ONCE // max(1, row_bytes))


def save(path: Path, tensors: Mapping[str, Tensor | Stream], meta: dict[str, Any]) -> None:
    """Write `tensors` and the JSON-able `meta` to `path`, atomically. Raises InputError if it cannot be written."""
    text = json.dumps({"format": FORMAT, **meta})
    try:
        write_atomically(path, lambda temporary: _write(temporary, tensors, {"fedflat": text}))
    except OSError as error:
        raise InputError(f"checkpoint {path} cannot be written: {error.strerror}") from error


def load(path: Path, streamed: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `save` wrote; matrices whose names begin with one of `streamed` as streams, which keep the file open.

    Raises ValueError, naming the file, if it is missing, damaged or of another format.
    """
    try:
        file: Any = safe_open(path, framework="pt")
        meta = json.loads((file.metadata() or {})["fedflat"])
        tensors = {name: _read(file, name, name.startswith(streamed)) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {error}") from error
    if meta.get("format") != FORMAT:
        raise InputError(f"checkpoint {path} has format {meta.get('format')}, this version reads {FORMAT}")
    return tensors, meta


def _read(file: Any, name: str, streamed: bool) -> Tensor | Stream:
    part = file.get_slice(name)
    shape = part.get_shape()
    # Cloned into memory that torch aligned: vector kernels round differently on the file's odd
    # addresses, and a resumed run would differ from an uninterrupted one in the last bit.
    if streamed and len(shape) == 2:
        return Stream((shape[0], shape[1]), part[:0].dtype, lambda start, end: part[start:end].clone())
    whole: Tensor = file.get_tensor(name).clone()
    return whole


def _write(path: Path, tensors: Mapping[str, Tensor | Stream], metadata: dict[str, str]) -> None:
    """The safetensors format, whose own writer wants everything in memory, twice.

    That is: the length of the header, the header in JSON, padded to eight bytes, and the tensors, widest numbers
    first, so that each begins at a multiple of its numbers' size.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    names, end = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)), 0
    for name in names:
        x = tensors[name]
        start, end = end, end + x.dtype.itemsize * torch.Size(x.shape).numel()
        header[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            _write_numbers(file, tensors[name])


def _write_numbers(file: BinaryIO, x: Tensor | Stream) -> None:
    for piece in x.pieces() if isinstance(x, Stream) else [x]:
        file.write(piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
