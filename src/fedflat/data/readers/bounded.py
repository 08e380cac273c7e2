"""Reading files whose content is not trusted: regular files only, and never more than a stated number of bytes."""

from __future__ import annotations

import gzip
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from ...files import read_bytes, said_of
from .bounds import CONTENT, PIECE
from .part import expect, refusal


class ByteStream(Protocol):
    """What gives bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, open for reading. Raises InputError for anything else; a pipe is refused, not waited for."""
    with said_of(path, "read"):
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    with file:
        expect(stat.S_ISREG(os.fstat(file.fileno()).st_mode), str(path), "not a file")
        yield file


def size_of(file: IO[bytes]) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def content(path: Path, most: int = CONTENT) -> bytes:
    """The content of a regular file of at most `most` bytes; a larger one is refused before any of it is read."""
    with opened(path) as file:
        expect(size_of(file) <= most, str(path), f"{size_of(file):,} bytes; at most {most:,} are read")
    return read_bytes(path, most)


def gathered(stream: ByteStream, name: str, most: int) -> bytes:
    """All that a stream gives. Raises InputError, naming the file, as soon as that is more than `most` bytes."""
    taken = io.BytesIO()
    while piece := stream.read(PIECE):
        expect(taken.tell() + len(piece) <= most, name, f"it unpacks to more than {most:,} bytes")
        taken.write(piece)
    return taken.getvalue()


class Bounded(io.RawIOBase):
    """A stream that is read up to byte `most`, and `once` bytes at a time; InputError, naming the file, beyond.

    Libraries that read archives take lengths from the archive, and read as much at once as it says.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, name: str, most: int, once: int) -> None:
        super().__init__()
        self._stream, self._name, self._most, self._once = stream, name, most, once

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and offset > self._most:
            raise self._beyond()
        return self._stream.seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        asked = self._once + 1 if size is None or size < 0 else size
        if asked > self._once + 1:
            raise refusal(self._name, f"a part of it says that it has {asked:,} bytes; at most {self._once:,} are read")
        found = self._stream.read(asked)
        if len(found) > self._once or self._stream.tell() > self._most:
            raise self._beyond()
        return found

    def _beyond(self) -> Exception:
        return refusal(self._name, f"it unpacks to more than {self._most:,} bytes, or has a part of {self._once:,}")
