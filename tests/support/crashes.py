"""A system that stops at any of its writes, and may forget what nobody asked it to put on disk."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from fedflat.engine import slot_file


class Crash(BaseException):
    """The process is gone."""


class Disk:
    """Counts the writes to slot files and the flushes, and stops before, or in the middle of, the one numbered `at`."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int | None = None) -> None:
        self.calls, self._at = 0, at
        self._write, self._one = os.pwrite, threading.Lock()  # a file's own thread writes too
        self._unflushed: list[tuple[int, bytes]] = []  # where, and what was there before
        self._safe: set[str] = set()  # names that a flushed folder has
        patch.setattr(os, "pwritev", self._pwritev)
        patch.setattr(os, "pwrite", self._pwrite)
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(slot_file, "_flush", self._flush)

    def left(self, folder: Path, copy: Path, rng: np.random.Generator | None) -> Path:
        """`folder` as the next process finds it, in `copy`; with `rng`, power failed and some of what was not flushed
        is lost."""
        shutil.copytree(folder, copy)
        if rng is not None:
            with (copy / slot_file.NAME).open("r+b") as file:
                for where, before in reversed(self._unflushed):
                    if rng.random() < 0.5:
                        file.seek(where)
                        file.write(before)
            for path in copy.glob("*.safetensors"):
                if path.name not in self._safe and rng.random() < 0.5:
                    path.unlink()
        return copy

    def _stops(self) -> bool:
        """Whether this call is the last one, which may be done in part; none comes after it."""
        number, self.calls = self.calls, self.calls + 1
        if self._at is not None and number > self._at:
            raise Crash
        return number == self._at

    def _pwritev(self, handle: int, parts: list[memoryview], where: int) -> int:
        return self._pwrite(handle, parts[0], where)

    def _pwrite(self, handle: int, content: bytes | memoryview, where: int) -> int:
        with self._one:
            stops = self._stops()
            content = bytes(content)[: len(content) // 2 if stops and where else None]  # the header is one sector
            before = os.pread(handle, len(content), where)
            self._unflushed.append((where, before.ljust(len(content), b"\0")))
            done = self._write(handle, content, where)
        if stops:
            raise Crash
        return done

    def _flush(self, handle: int) -> None:
        if self._stops():
            raise Crash
        self._unflushed = []

    def _fsync(self, handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            if self._stops():
                raise Crash
            self._safe = set(os.listdir(handle))
