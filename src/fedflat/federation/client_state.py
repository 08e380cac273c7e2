"""The state that a client keeps between rounds, in one file for each round."""

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
from ..files import create_folder, read_bytes, sweep, system_errors, write_atomically

R = TypeVar("R", bound=Record)
_FILE = re.compile(r"round-(\d{8})\.safetensors")
DIGEST = "sha256"  # name of an additional tensor (32,), the SHA-256 of the content
HEADER = 64 * 2**10  # bytes that a file may have in addition to its numbers
READ_ERRORS = (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError)
OWNER_ONLY = 0o700


class ClientState:
    """The method's client record after each of the rounds that the server may refer to, in a folder.

    The server does not accept every update, and it may go back to an earlier checkpoint. So each request names the
    round after which the client's record is to be used. Records reveal gradients on the client's samples: only their
    owner can read the files.
    """

    def __init__(self, folder: Path, record: type[Record]) -> None:
        """`folder` is created at the first `save`."""
        self._folder, self._per_round = folder, record.marked("per_round")

    def load(self, t: int, initial: R) -> R:
        """Return the record after round `t`, or `initial` for t = -1.

        Raises InputError, naming the file, if it is missing, damaged or another study's.
        """
        expected = self._kept_fields(initial)
        if t < 0 or not expected:
            return initial
        kept = self._read(t, expected)
        return type(initial)(**initial.tensors() | {name: x.to(expected[name].device) for name, x in kept.items()})

    def save(self, t: int, record: Record, needed: Set[int]) -> None:
        """Write the record after round `t`, and remove those of earlier rounds that are not in `needed`.

        Later ones stay: a request may arrive, a second time or late, after the next round's. Nothing is written for a
        method without client state. Raises InputError if the file cannot be written.
        """
        tensors = {name: x.detach().cpu().contiguous() for name, x in self._kept_fields(record).items()}
        if not tensors:
            return
        content = {**tensors, DIGEST: _digest(t, tensors)}
        with system_errors(self._folder, "written"):
            create_folder(self._folder, OWNER_ONLY)
            self._folder.chmod(OWNER_ONLY)  # also a folder that exists already
            sweep(self._folder)  # temporary files of a process that was killed; nobody waits for its reply any more
            write_atomically(self._file(t), lambda path: path.write_bytes(save(content)), private=True)
            for path in list(self._folder.glob("round-*")):
                match = _FILE.fullmatch(path.name)
                if match and int(match[1]) < t and int(match[1]) not in needed:
                    path.unlink(missing_ok=True)

    def _read(self, t: int, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read the fields in the file of round `t` into newly allocated memory."""
        path = self._file(t)
        limit = HEADER + sum(x.nbytes for x in expected.values())
        try:
            kept: dict[str, Tensor] = load(read_bytes(path, limit))
        except InputError as error:
            raise InputError(f"client record {error}") from error
        except READ_ERRORS as error:
            raise InputError(f"client record {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
        digest = kept.pop(DIGEST, None)
        found, needed = ({name: (x.shape, x.dtype) for name, x in one.items()} for one in (kept, expected))
        if found != needed:
            raise InputError(f"client record {path} does not fit the method or the model")
        if digest is None or not torch.equal(digest, _digest(t, kept)):
            raise InputError(f"client record {path} is damaged: it is not what was written after round {t}")
        return kept

    def _kept_fields(self, record: Record) -> dict[str, Tensor]:
        return {name: x for name, x in record.tensors().items() if name not in self._per_round and x.numel()}

    def _file(self, t: int) -> Path:
        return self._folder / f"round-{t:08d}.safetensors"


def _digest(t: int, tensors: Mapping[str, Tensor]) -> Tensor:
    """SHA-256 (32,) of the round and of the names, shapes and numbers of its fields."""
    digest = hashlib.sha256(f"round {t}".encode())
    for name, x in sorted(tensors.items()):
        digest.update(f"\n{name} {tuple(x.shape)} {x.dtype}\n".encode())
        digest.update(x.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
