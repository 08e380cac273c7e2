"""The slot file: records of equal size on disk, read and written in place, and the keys of its checkpoints."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..core.errors import InputError
from ..files import write_atomically
from ..operating_system import flush_folder, lock, open_no_link
from ..rounds.checkpoint import AT_ONCE, KEPT, DamagedError

Slots = NDArray[np.int32]  # (c,)
Content = NDArray[np.uint8]  # (c, bytes of a slot)
Digests = NDArray[np.int64]  # (c,) XXH3-64 of each record: detects accidents, in a ninth of SHA-256's time
NAME = "clients.slots"
START = 4096  # bytes before the first slot
NONE = bytes(16)  # in place of a key: no checkpoint
_MAGIC = b"fedflat slots 2\n"
_HEADER = struct.Struct(f"<16sQ{16 * KEPT}s16s")  # magic, bytes of a slot, keys of the last checkpoints, of the next
_flush: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


class SlotFile:
    """A file of slots of `slot_bytes` bytes, one after another.

    The header has the keys of the checkpoints whose slots are all intact: the last `KEPT` checkpoints and the one that
    is being written. A checkpoint is never read from a file that lacks the checkpoint's key: such a file belongs to
    another run, or was written after the checkpoint was dropped. The digest of each slot is kept in memory while the
    file is used, and in the checkpoint, so that reads detect flipped bits and lost writes. A writer locks the file;
    readers do not lock it, but read the header again after every read. Slots are read by `pread`, because reading a
    memory map in random order took 100 times longer.
    """

    def __init__(self, handle: int, name: str, slot_bytes: int, keys: Sequence[bytes], folder: Path | None) -> None:
        """Use `anonymous`, `created`, `opened` or `claimed` instead. keys: of the file's checkpoints, oldest first."""
        self.name, self.folder = name, folder
        self.writable = False
        self._handle, self._slot_bytes, self._keys = handle, slot_bytes, tuple(keys)
        self._next = NONE
        self._digests: Digests = np.zeros(0, dtype=np.int64)  # by slot
        self._closed = weakref.finalize(self, os.close, handle)

    @property
    def key(self) -> bytes:
        """The key of the newest checkpoint that the file was written for or is read for; `NONE` before the first."""
        return self._keys[-1] if self._keys else NONE

    @classmethod
    def anonymous(cls, slot_bytes: int) -> SlotFile:
        """Make a file without a name in the temporary folder; closing it, or the end of the process, frees it."""
        _refuse_on_windows()
        name = f"a temporary file in {tempfile.gettempdir()}"
        with _system_errors(name, "made"), tempfile.TemporaryFile() as file:
            opened = cls(os.dup(file.fileno()), name, slot_bytes, (), None)
        opened.writable = True
        return opened

    @classmethod
    def created(cls, folder: Path, slot_bytes: int) -> SlotFile:
        """Make a file in `folder`, or replace one that no checkpoint needs. Raises InputError if that fails."""
        file = cls._open(folder, slot_bytes, (), os.O_RDWR | os.O_CREAT)
        file._lock()
        header = file._header()
        if header is None and os.fstat(file._handle).st_size:
            raise InputError(f"{file.name} is no file of client records; move it, or use another folder")
        if header is not None and header[1]:
            raise InputError(f"{file.name} belongs to a checkpoint; load that, remove the file, or use another folder")
        with _system_errors(file.name, "written"):
            os.ftruncate(file._handle, 0)
            file._serve(())
            flush_folder(folder)
        return file

    @classmethod
    def opened(cls, folder: Path, slot_bytes: int, key: bytes, slots: Slots, digests: Digests) -> SlotFile:
        """Open the file in `folder` to read the records of the checkpoint with `key`, in `slots` (c,).

        Raises DamagedError if the file does not belong to that checkpoint, or if a record does not have its digest in
        `digests` (c,).
        """
        file = cls._open(folder, slot_bytes, (key,), os.O_RDONLY)
        try:
            file.check()
            if os.fstat(file._handle).st_size < START + (int(slots.max(initial=-1)) + 1) * slot_bytes:
                raise DamagedError(f"{file.name} is damaged: it ends before its last slot")
            file._read_digests(slots, digests)
        except BaseException:
            file.close()
            raise
        return file

    @classmethod
    def slot_bytes(cls, folder: Path) -> int:
        """Return the number of bytes of a slot of the file in `folder`. Raises DamagedError if it is no slot file."""
        file = cls._open(folder, 0, (), os.O_RDONLY)
        try:
            header = file._header()
        finally:
            file.close()
        if header is None:
            raise DamagedError(f"{file.name} is damaged: it is no file of client records")
        return header[0]

    @classmethod
    def claimed(cls, file: SlotFile) -> SlotFile:
        """Open an `opened` file again, for writing.

        Raises InputError if another simulation writes to it, DamagedError if it no longer has the checkpoint's key.
        """
        if file.folder is None:
            raise InputError(f"{file.name} has no name")
        claimed = cls._open(file.folder, file._slot_bytes, (file.key,), os.O_RDWR)
        claimed._lock()
        claimed._digests = file._digests
        keys = claimed.check()
        # Slots of an unfinished checkpoint and of damaged ones become free.
        claimed._keys = keys[: keys.index(file.key) + 1][-KEPT:]
        claimed._serve(claimed._keys)
        return claimed

    def digests(self, slots: Slots) -> Digests:
        """Return the digests (c,) of the content written to `slots` (c,)."""
        return self._digests[slots]

    def read(self, slots: Slots, content: Content) -> None:
        """Read `slots` (c,) into `content`. Raises DamagedError if they cannot be read, or are damaged."""
        with _system_errors(self.name, "read", DamagedError):
            self._move(os.preadv, slots, content)
        if not self.writable:
            self.check()
        wrong = np.flatnonzero(digests_of(content) != self._digests[slots])
        if len(wrong):
            raise DamagedError(
                f"client records: {self.name} is damaged: slot {int(slots[wrong[0]])} has another digest"
            )

    def write(self, slots: Slots, content: Content) -> None:
        """Write `content` into `slots` (c,). Raises InputError if it cannot be written."""
        with _system_errors(self.name, "written"):
            self._move(os.pwritev, slots, content)
        self._store_digests(slots, digests_of(content))

    def check(self) -> tuple[bytes, ...]:
        """Return the keys in the header. Raises DamagedError unless they include `key`."""
        header = self._header()
        slot_bytes, keys, following = header or (0, (), NONE)
        if slot_bytes != self._slot_bytes or self.key == NONE or self.key not in (*keys, following):
            raise DamagedError(f"{self.name} does not fit the checkpoint: it is another run's, or was written since")
        return (*keys, following)

    def announce(self) -> bytes:
        """Flush all writes to disk for a checkpoint that is about to refer to them; return the checkpoint's key."""
        self._next = os.urandom(16)
        self._serve(self._keys, self._next)
        return self._next

    def settle(self) -> None:
        """Write to the header that the announced checkpoint is in place, and drop the oldest one from the header.

        The header must not reach the disk before the name of the new checkpoint does, so the folder is flushed first.
        """
        if self.folder is not None:
            with _system_errors(self.name, "written"):
                flush_folder(self.folder)
        self._keys = (*self._keys, self._next)[-KEPT:]
        self._serve(self._keys)
        self._next = NONE

    def close(self) -> None:
        """Close the file and release its lock."""
        self._closed()

    @classmethod
    def _open(cls, folder: Path, slot_bytes: int, keys: Sequence[bytes], flags: int) -> SlotFile:
        _refuse_on_windows()
        kind = InputError if flags & os.O_CREAT else DamagedError
        with _system_errors(path := str(folder / NAME), "opened", kind):
            handle = open_no_link(path, flags, 0o600)  # gradients could be guessed from it
            return cls(handle, path, slot_bytes, keys, folder)

    def _lock(self) -> None:
        """Lock the file for writing; the system releases the lock when the process ends."""
        try:
            lock(self._handle)
        except OSError as error:
            raise InputError(f"{self.name} is being written by another simulation") from error
        self.writable = True

    def _header(self) -> tuple[int, tuple[bytes, ...], bytes] | None:
        """Return bytes of a slot, keys of the last checkpoints and of the next; None if this is no slot file."""
        with _system_errors(self.name, "read", DamagedError):
            written = os.pread(self._handle, _HEADER.size, 0)
        if len(written) < _HEADER.size or not written.startswith(_MAGIC):
            return None
        _, slot_bytes, keys, following = _HEADER.unpack(written)
        each = (keys[i : i + 16] for i in range(0, len(keys), 16))
        return slot_bytes, tuple(key for key in each if key != NONE), following

    def _serve(self, keys: Sequence[bytes], following: bytes = NONE) -> None:
        """Write the keys of the checkpoints whose slots are all intact, and flush keys and slots to disk."""
        with _system_errors(self.name, "written"):
            os.pwrite(self._handle, _HEADER.pack(_MAGIC, self._slot_bytes, b"".join(keys), following), 0)
            _flush(self._handle)

    def _read_digests(self, slots: Slots, digests: Digests) -> None:
        """Check the content of `slots` against the checkpoint's `digests`, and keep the digests in memory."""
        at_once = max(1, AT_ONCE // max(1, self._slot_bytes))
        for start in range(0, len(slots), at_once):
            these = slots[start : start + at_once]
            content = np.empty((len(these), self._slot_bytes), dtype=np.uint8)
            with _system_errors(self.name, "read", DamagedError):
                self._move(os.preadv, these, content)
            actual = digests_of(content)
            if (actual != digests[start : start + at_once]).any():
                raise DamagedError(f"{self.name} is damaged: a record has another digest than its checkpoint says")
            self._store_digests(these, actual)

    def _store_digests(self, slots: Slots, digests: Digests) -> None:
        needed = int(slots.max(initial=-1)) + 1
        if needed > len(self._digests):
            room = np.zeros(max(needed, len(self._digests) * 5 // 4), dtype=np.int64)
            room[: len(self._digests)] = self._digests
            self._digests = room
        self._digests[slots] = digests

    def _move(self, move: Callable[..., int], slots: Slots, content: Content) -> None:
        """Read (`move` is preadv) or write (pwritev) the `content` of `slots`, in their order on disk.

        Slots that are adjacent both on disk and in `content` are moved by one call.
        """
        if not len(slots):
            return
        order = np.argsort(slots, kind="stable")
        apart = np.flatnonzero((np.diff(slots[order]) != 1) | (np.diff(order) != 1)) + 1
        memory, size = content.reshape(-1).data, self._slot_bytes
        firsts = [0, *apart.tolist()]
        for first, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
            row = int(order[first])
            part, offset = memory[row * size : (row + end - first) * size], START + int(slots[row]) * size
            while len(part):  # a move may stop early: after 2 GiB, or when a disk is full
                done = move(self._handle, [part], offset)
                if not done:
                    raise OSError(0, "it ends too early")
                part, offset = part[done:], offset + done


def _refuse_on_windows() -> None:
    """Raise InputError on a system whose files cannot be read and written at a position, by several threads."""
    if not hasattr(os, "preadv"):
        raise InputError("client records in a file are not offered on Windows; set a larger store_megabytes")


def replace_by_copy(folder: Path) -> None:
    """Replace the slot file in `folder`, if there is one, by a copy of itself.

    A process that still has the file open then writes to a file without a name. Slots that a checkpoint refers to are
    never written again, so that they are intact in the copy.
    """
    path = folder / NAME
    if os.path.lexists(path):
        write_atomically(path, lambda temporary: shutil.copyfile(path, temporary, follow_symlinks=False), private=True)


def digests_of(content: Content) -> Digests:
    """Return the digests (c,) of the records in `content`."""
    each = np.fromiter((xxhash.xxh3_64_intdigest(row) for row in content), dtype=np.uint64, count=len(content))
    return each.view(np.int64)


@contextmanager
def _system_errors(name: str, what: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn an OSError into an error of `kind` with one line that names the file."""
    try:
        yield
    except OSError as error:
        raise kind(f"client records: {name} cannot be {what}: {error.strerror}") from error
