"""What a client keeps between its rounds, in files that say from which round."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..core.errors import InputError
from ..core.records import Record
from ..files import write_atomically

R = TypeVar("R", bound=Record)
_NAME = re.compile(r"round-(\d{8})\.safetensors")


class Memory:
    """A client's records in a folder, one file for each of the rounds that may still be asked for.

    Not all rounds that a client trains in count at the server, which may also go back, to its last checkpoint. So it
    says which round's record it means.
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
        path = self._path(t)
        try:
            kept = load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"client record {path} cannot be read: {error}") from error
        if {name: (x.shape, x.dtype) for name, x in kept.items()} != {
            n: (x.shape, x.dtype) for n, x in expected.items()
        }:
            raise InputError(f"client record {path} does not fit the method or the model")
        return type(first)(**first.tensors() | {name: x.to(expected[name].device) for name, x in kept.items()})

    def keep(self, t: int, record: Record, needed: Set[int]) -> None:
        """Keep what the client has after round `t`, if it keeps anything, and of older records those that are `needed`.

        Raises InputError if it cannot be written.
        """
        if not self._lasting(record):
            return
        tensors = {name: x.detach().cpu().contiguous() for name, x in self._lasting(record).items()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(t), lambda path: save_file(tensors, path))
            for r in self._rounds():
                if r not in {t, *needed}:
                    self._path(r).unlink()
        except OSError as error:
            raise InputError(f"client record {self._path(t)} cannot be written: {error.strerror}") from error

    def _lasting(self, record: Record) -> dict[str, Tensor]:
        """The fields that are kept."""
        return {name: x for name, x in record.tensors().items() if name not in self._passing and x.numel()}

    def _rounds(self) -> list[int]:
        """The rounds there are files of."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.glob("round-*"))
        return [int(match[1]) for match in found if match]

    def _path(self, t: int) -> Path:
        return self._folder / f"round-{t:08d}.safetensors"
