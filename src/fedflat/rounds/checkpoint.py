"""Checkpoints: the state of a run between two rounds in one file, as safetensors and JSON; nothing is unpickled.

The last tensor is the SHA-256 of all bytes before it, which is checked before the content is used. The last `KEPT`
checkpoints of a folder are kept, so that a damaged one costs some rounds and not the run.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import InputError
from ..files import check_fence, system_errors, write_atomically

FORMAT = 3
KEPT = 3  # number of checkpoints of a run that are kept, the newest ones
AT_ONCE = 32 * 2**20  # bytes of a stream that are held in memory at once
SUM = "sha256"  # the last tensor
_NAME = re.compile(r"round-(\d{6,9})\.safetensors")
_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """A matrix that is read some rows at a time."""

    shape: tuple[int, int]
    dtype: torch.dtype
    read: Callable[[int, int], Tensor]  # (start, end) -> the rows (n, width) from start to end - 1

    @classmethod
    def of(cls, x: Tensor | Stream) -> Stream:
        """Return `x` (n, width) as a stream."""
        return x if isinstance(x, Stream) else cls((x.shape[0], x.shape[1]), x.dtype, lambda start, end: x[start:end])

    def pieces(self) -> Iterator[Tensor]:
        """Yield all rows in order, as many at once as fit in `AT_ONCE` bytes."""
        step = rows_at_once(self.shape[1] * self.dtype.itemsize)
        for start in range(0, self.shape[0], step):
            yield self.read(start, min(start + step, self.shape[0]))


def rows_at_once(row_bytes: int) -> int:
    """Return how many rows of `row_bytes` bytes are held in memory at once."""
    return max(1, AT_ONCE // max(1, row_bytes))


class DamagedError(InputError):
    """A checkpoint that is damaged or incomplete; an older one may be intact."""


def path_of(folder: Path, t: int) -> Path:
    """Return the path of the checkpoint after `t` rounds in `folder`."""
    return folder / f"round-{t:06d}.safetensors"


def round_of(path: Path) -> int | None:
    """Return the number of rounds in the name of a checkpoint; None for another file."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def kept_in(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first."""
    found = [(t, path) for path in folder.glob("round-*") if (t := round_of(path)) is not None]
    return [path for _, path in sorted(found)]


def retire(folder: Path, newest: int, kept: int = KEPT) -> None:
    """Remove the checkpoints in `folder` that no run will continue from.

    Of the checkpoints up to round `newest`, the last `kept` stay. Checkpoints of later rounds are damaged, so they are
    removed. Raises InputError if a checkpoint cannot be removed.
    """
    states = kept_in(folder)
    later = [path for path in states if (round_of(path) or 0) > newest]
    earlier = [path for path in states if path not in later]
    with system_errors(folder, "cleared of old states"):
        check_fence()
        for path in (*earlier[:-kept], *later):
            path.unlink(missing_ok=True)


def save(path: Path, tensors: Mapping[str, Tensor | Stream], meta: dict[str, Any]) -> None:
    """Write `tensors` and the JSON-able `meta` to `path`, atomically. Raises InputError if it cannot be written.

    Only the owner can read the file, because clients' records reveal something of the clients' gradients.
    """
    text = json.dumps({"format": FORMAT, **meta})
    write_atomically(path, lambda temporary: _write(temporary, tensors, {"fedflat": text}), private=True)


def load(path: Path, streamed: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a checkpoint; matrices whose names begin with one of `streamed` become streams and keep the file open.

    Raises DamagedError, naming the file, if it is missing, damaged or incomplete, InputError if it is of another
    format.
    """
    check_sum(path)
    try:
        file: Any = safe_open(path, framework="pt")
        meta = json.loads((file.metadata() or {})["fedflat"])
        if meta["format"] != FORMAT:
            raise InputError(f"checkpoint {path} has format {meta['format']}, this version reads {FORMAT}")
        names = [name for name in file.keys() if name != SUM]  # noqa: SIM118 (not a mapping)
        return {name: _read(file, name, name.startswith(streamed)) for name in names}, meta
    except InputError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise DamagedError(f"checkpoint {path} cannot be read: {' '.join(str(error).split())[:200]}") from error


def settings_of(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings in the metadata of a checkpoint. Raises DamagedError if they are missing."""
    settings = meta.get("settings")
    if not isinstance(settings, dict):
        raise DamagedError(f"checkpoint {path} is no state of a run: its settings are missing")
    return settings


def check_sum(path: Path) -> None:
    """Raise DamagedError unless the file can be read and ends with the SHA-256 of all bytes before it."""
    try:
        with path.open("rb") as file:
            left, digest = path.stat().st_size - 32, hashlib.sha256()
            while left > 0 and (some := file.read(min(left, 2**20))):
                digest.update(some)
                left -= len(some)
            is_whole = left == 0 and file.read() == digest.digest()
    except OSError as error:
        raise DamagedError(f"checkpoint {path} cannot be read: {error.strerror}") from error
    if not is_whole:
        raise DamagedError(f"checkpoint {path} cannot be read: it is damaged, its SHA-256 is another one")


def _read(file: Any, name: str, streamed: bool) -> Tensor | Stream:
    part = file.get_slice(name)
    shape = part.get_shape()
    # Cloned into memory that torch aligned: vector kernels round differently on the file's odd
    # addresses, and a resumed run would differ from an uninterrupted one in the last bit.
    if streamed and len(shape) == 2:
        return Stream((shape[0], shape[1]), part[:0].dtype, lambda start, end: part[start:end].clone())
    tensor: Tensor = file.get_tensor(name).clone()
    return tensor


def _write(path: Path, tensors: Mapping[str, Tensor | Stream], metadata: dict[str, str]) -> None:
    """Write the safetensors format; the library's own writer would hold everything in memory, twice.

    The file consists of the length of the header, the header in JSON (padded to a multiple of eight bytes), and the
    tensors. Tensors with the widest numbers come first, so that each tensor begins at a multiple of the size of its
    numbers. The last tensor is the SHA-256 of all bytes before it.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    names, end = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)), 0
    for name in names:
        x = tensors[name]
        start, end = end, end + x.dtype.itemsize * torch.Size(x.shape).numel()
        header[name] = {"dtype": _NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [start, end]}
    header[SUM] = {"dtype": "U8", "shape": [32], "data_offsets": [end, end + 32]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for content in _contents(struct.pack("<Q", len(text)) + text, [tensors[name] for name in names]):
            digest.update(content)
            file.write(content)
        file.write(digest.digest())


def _contents(header: bytes, tensors: Sequence[Tensor | Stream]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file before its checksum, some at a time."""
    yield header
    for x in tensors:
        for piece in x.pieces() if isinstance(x, Stream) else [x]:
            yield piece.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
