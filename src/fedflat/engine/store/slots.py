"""The slot file: records of equal size on disk, read and written in place, and the checkpoints that it serves."""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from .slot_index import Slots

Content = NDArray[np.uint8]  # (c, bytes of a slot)
NAME = "clients.slots"
START = 4096  # bytes before the first slot
NONE = bytes(16)  # no checkpoint
_MAGIC = b"fedflat slots 1\n"
_HEADER = struct.Struct("<16sQ16s16s")  # magic, bytes of a slot, keys of one or two checkpoints
_flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class SlotFile:
    """Slots of `slot_bytes` bytes, one after another.

    Its header names the checkpoints whose slots are all intact: the last one, and, while the next is being written,
    that one too. A file that another run wrote, or that has gone on since a checkpoint, therefore never passes for
    that checkpoint's. Whoever writes has the file locked; readers do not lock, but look at the header again after
    every read. `pread` and `pwrite` rather than a map into memory, whose reads in random order took 100 times longer.
    """

    def __init__(self, handle: int, name: str, slot_bytes: int, key: bytes, folder: Path | None) -> None:
        """Use `anonymous`, `created`, `opened` or `claimed`. `key` is that of the checkpoint it holds, if any."""
        self.name, self.folder, self.key = name, folder, key
        self.writable = False
        self._handle, self._slot_bytes = handle, slot_bytes
        self._next = NONE
        self._closed = weakref.finalize(self, os.close, handle)

    @classmethod
    def anonymous(cls, slot_bytes: int) -> SlotFile:
        """A file without a name in the folder for temporary files; it is gone when it is closed or the process ends."""
        with _told(f"a temporary file in {tempfile.gettempdir()}", "made"), tempfile.TemporaryFile() as file:
            found = cls(os.dup(file.fileno()), f"a temporary file in {tempfile.gettempdir()}", slot_bytes, NONE, None)
        found.writable = True
        return found

    @classmethod
    def created(cls, folder: Path, slot_bytes: int) -> SlotFile:
        """A new file in `folder`, over one that no checkpoint needs. Raises InputError if it cannot be made."""
        file = cls._open(folder, slot_bytes, NONE, os.O_RDWR | os.O_CREAT)
        file._lock()
        header = file._header()
        if header is not None and header[1] != NONE:
            raise InputError(f"{file.name} belongs to a checkpoint; load that, remove the file, or use another folder")
        with _told(file.name, "written"):
            os.ftruncate(file._handle, 0)
        file._serve(NONE)
        file._flush_folder()
        return file

    @classmethod
    def opened(cls, folder: Path, slot_bytes: int, key: bytes, used: int) -> SlotFile:
        """The file in `folder` to be read for the checkpoint `key`, which refers to the slots before `used`.

        Raises InputError if it is not that checkpoint's, or is damaged.
        """
        file = cls._open(folder, slot_bytes, key, os.O_RDONLY)
        file.check()
        if os.fstat(file._handle).st_size < START + used * slot_bytes:
            raise InputError(f"{file.name} is damaged: it ends before its last slot")
        return file

    @classmethod
    def claimed(cls, folder: Path, slot_bytes: int, key: bytes) -> SlotFile:
        """The file in `folder` to be written, too, from the checkpoint `key` on. Raises InputError as `opened` does."""
        file = cls._open(folder, slot_bytes, key, os.O_RDWR)
        file._lock()
        file.check()
        file._serve(key)  # another checkpoint that was being written is forgotten: its slots are free
        return file

    def read(self, slots: Slots, content: Content) -> None:
        """Read `slots` (c,) into `content`. Raises InputError if they cannot be read, or may have changed."""
        with _told(self.name, "read"):
            self._move(os.preadv, slots, content)
        if not self.writable:
            self.check()

    def write(self, slots: Slots, content: Content) -> None:
        """Write `content` into `slots` (c,). Raises InputError if it cannot be written."""
        with _told(self.name, "written"):
            self._move(os.pwritev, slots, content)

    def check(self) -> None:
        """Raise InputError unless the file still has what its checkpoint refers to."""
        header = self._header()
        served = header is not None and header[0] == self._slot_bytes and self.key in header[1:]
        if not served or self.key == NONE:
            raise InputError(f"{self.name} does not fit the checkpoint: it is another run's, or has gone on since")

    def announce(self) -> bytes:
        """Everything written is on disk, and the key of a checkpoint to come that refers to it."""
        self._next = os.urandom(16)
        self._serve(self.key, self._next)
        return self._next

    def settle(self) -> None:
        """The checkpoint that was announced is in place: from now on the slots of the one before may be written.

        That must not reach the disk before the checkpoint's new name does.
        """
        self._flush_folder()
        self._serve(self._next)
        self.key, self._next = self._next, NONE

    def close(self) -> None:
        """Free the file and its lock."""
        self._closed()

    @classmethod
    def _open(cls, folder: Path, slot_bytes: int, key: bytes, flags: int) -> SlotFile:
        with _told(path := str(folder / NAME), "opened"):
            return cls(os.open(path, flags | os.O_CLOEXEC, 0o644), path, slot_bytes, key, folder)

    def _lock(self) -> None:
        """Become the only one that writes; the system frees the lock however the process ends."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{self.name} is being written by another simulation") from error
        self.writable = True

    def _header(self) -> tuple[int, bytes, bytes] | None:
        """Bytes of a slot and the keys of two checkpoints, if this is a slot file."""
        with _told(self.name, "read"):
            written = os.pread(self._handle, _HEADER.size, 0)
        if len(written) < _HEADER.size or not written.startswith(_MAGIC):
            return None
        _, slot_bytes, last, following = _HEADER.unpack(written)
        return slot_bytes, last, following

    def _serve(self, last: bytes, following: bytes = NONE) -> None:
        """Name the checkpoints that have all their slots; on disk, with the slots, when this returns."""
        with _told(self.name, "written"):
            os.pwrite(self._handle, _HEADER.pack(_MAGIC, self._slot_bytes, last, following), 0)
            _flush(self._handle)

    def _flush_folder(self) -> None:
        """New names in the folder are on disk when this returns."""
        with _told(self.name, "written"):
            folder = os.open(str(self.folder), os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _move(self, move: Callable[..., int], slots: Slots, content: Content) -> None:
        """Carry `content` from or to `slots`, in the order on disk, and what lies side by side in both at once."""
        order = np.argsort(slots, kind="stable")
        apart = np.flatnonzero((np.diff(slots[order]) != 1) | (np.diff(order) != 1)) + 1
        memory, size = content.reshape(-1).data, self._slot_bytes
        firsts = [0, *apart.tolist()]
        for first, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
            row = int(order[first])
            _through(move, self._handle, memory[row * size : (row + end - first) * size],
                     START + int(slots[row]) * size)  # fmt: skip


def _through(move: Callable[..., int], handle: int, memory: memoryview, offset: int) -> None:
    """Call `move`, which may stop early (2 GiB at once; a disk that fills up), until all of `memory` is through."""
    while len(memory):
        done = move(handle, [memory], offset)
        if not done:
            raise OSError(0, "it ends too early")
        memory, offset = memory[done:], offset + done


@contextmanager
def _told(name: str, what: str) -> Iterator[None]:
    """Errors of the system as one line that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"client records: {name} cannot be {what}: {error.strerror}") from error
