"""What a client keeps between its rounds, in files that say from which round."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..core.errors import InputError
from ..core.records import Record
from ..files import create_folder, read_bytes, said_of, sweep, write_atomically

R = TypeVar("R", bound=Record)
_NAME = re.compile(r"round-(\d{8})\.safetensors")
DIGEST = "sha256"  # the tensor beside the fields, (32,): of what the file says; files of the first releases have none
HEADER = 64 * 2**10  # bytes that a file may have beside its numbers
UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError)  # what reading it raises
OWNER = 0o700  # a folder that its owner alone can look into


class ClientState:
    """A client's records in a folder, one file for each of the rounds that may still be asked for.

    Not all rounds that a client trains in count at the server, which may also go back, to one of its checkpoints. So it
    says which round's record it means. Records tell of samples what gradients do: only their owner can read them.
    """

    def __init__(self, folder: Path, record: type[Record]) -> None:
        """The folder is made when something is kept."""
        self._folder, self._passing = folder, record.marked("per_round")

    def after(self, t: int, first: R) -> R:
        """The record as it was after round `t`; for -1 `first`, what a client begins with.

        Raises InputError, naming the file, if it is missing, damaged or another study's.
        """
        expected = self._lasting(first)
        if t < 0 or not expected:
            return first
        kept = self._read(t, expected)
        return type(first)(**first.tensors() | {name: x.to(expected[name].device) for name, x in kept.items()})

    def keep(self, t: int, record: Record, needed: Set[int]) -> None:
        """Keep what the client has after round `t`, if it keeps anything, and of older records those that are `needed`.

        Raises InputError if it cannot be written.
        """
        if not self._lasting(record):
            return
        tensors = {name: x.detach().cpu().contiguous() for name, x in self._lasting(record).items()}
        content = {**tensors, DIGEST: _digest(t, tensors)}
        with said_of(self._folder, "written"):
            _make(self._folder)
            sweep(
                self._folder
            )  # if one is still at it, its SuperNode has ended: there is nobody that it could answer to
            write_atomically(self._path(t), lambda path: path.write_bytes(save(content)), private=True)
            for r in self._rounds():
                if r not in {t, *needed}:
                    self._path(r).unlink(missing_ok=True)

    def _read(self, t: int, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fields in the file of round `t`, in memory of their own."""
        path = self._path(t)
        most = HEADER + sum(x.nbytes for x in expected.values())
        try:
            kept: dict[str, Tensor] = load(read_bytes(path, most))
        except InputError as error:
            raise InputError(f"client record {error}") from error
        except UNREADABLE as error:
            raise InputError(f"client record {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
        digest = kept.pop(DIGEST, None)
        if _outline(kept) != _outline(expected):
            raise InputError(f"client record {path} does not fit the method or the model")
        if digest is not None and not torch.equal(digest, _digest(t, kept)):
            raise InputError(f"client record {path} is damaged: it is not what was written after round {t}")
        return kept

    def _lasting(self, record: Record) -> dict[str, Tensor]:
        """The fields that are kept."""
        return {name: x for name, x in record.tensors().items() if name not in self._passing and x.numel()}

    def _rounds(self) -> list[int]:
        """The rounds there are files of."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.glob("round-*"))
        return [int(match[1]) for match in found if match]

    def _path(self, t: int) -> Path:
        return self._folder / f"round-{t:08d}.safetensors"


def _make(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner alone."""
    create_folder(folder, OWNER)
    folder.chmod(OWNER)  # of the first releases others could look into it


def _outline(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (x.shape, x.dtype) for name, x in tensors.items()}


def _digest(t: int, tensors: Mapping[str, Tensor]) -> Tensor:
    """SHA-256 of a round's fields, their names and shapes included, (32,)."""
    found = hashlib.sha256(f"round {t}".encode())
    for name, x in sorted(tensors.items()):
        found.update(f"\n{name} {tuple(x.shape)} {x.dtype}\n".encode())
        found.update(x.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)
