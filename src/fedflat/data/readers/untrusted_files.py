"""Reading of untrusted files: only regular files, and never more bytes than the limits allow in any reader.

Every error is an InputError of one printable line that names the file and its problem.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ...core.errors import InputError, imported_errors, printable
from ...files import read_bytes, system_errors
from ...operating_system import NO_WAITING

# Limits on the sizes that a data file may claim. Real data sets stay far below every limit; a file above one is refused
# by name before memory is allocated.
MIB = 2**20  # bytes

MAX_FILE_BYTES = 1024 * MIB  # of one unpacked file; the largest known, EMNIST's training pictures, has 547 MB
ALWAYS_ALLOWED_BYTES = 16 * MIB  # that any file may unpack to: a thousand blank pictures pack into very few bytes
MAX_RATIO = 100  # unpacked to packed size of a larger file; MNIST's pictures reach 5, a gzip bomb 1,000
CHUNK_BYTES = MIB  # unpacked at once
MAX_SAMPLES = 10_000_000  # of one part; the largest known data set, FEMNIST, has 814,000

MAX_MEMBERS = 100_000  # of an archive; MNIST as single pictures would have 70,000
MAX_HEADER_BYTES = 64 * 2**10  # of a tar member's header with its extensions; names and times take some hundred
MAX_DIRECTORY_BYTES = 8 * MIB  # of a zip's directory; one of 70,000 pictures takes 6 MB

MAX_ENCODED_BYTES = 64 * MIB  # of one encoded picture; photographs take up to some 20 MB
MAX_PIXELS = 89_478_485  # of one picture, before and after it is resized: Pillow's limit, 256 MiB at 3 bytes each
LARGE_PIXELS = 4 * MIB  # larger pictures are decoded one at a time, so that not every core holds one

MAX_TEXT = 2**17  # characters of one text, the limit of Python's csv module; articles have up to some 10,000
MAX_ROW = MIB  # characters of one row of a csv file; known data sets have two texts a row

MAX_FOOTER_BYTES = 16 * MIB  # of a parquet file's description; FEMNIST in groups of 100 rows would take some 6
MAX_ENTRIES = 100_000  # of any list in that description; FEMNIST would have 8,140 such groups
MAX_VALUES = 2_000_000  # in that description; FEMNIST would have a million

MAX_OPCODES = 1_000_000  # of a pickled CIFAR batch; CIFAR-100's training batch has some 200,000
MAX_TUPLES = 1_000  # of a pickled CIFAR batch, which has some ten: hashing a deep tuple overflows Python's stack

SHOWN = 200  # characters of a file's own text in a message
# What libraries raise for hostile content: RuntimeError comes from an encrypted zip and from content nested too deep.
PARSING_ERRORS = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
                  MemoryError, zlib.error, struct.error, tarfile.TarError, zipfile.BadZipFile)  # fmt: skip


def archive_limit(packed: int) -> int:
    """Return the largest number of bytes that an archive of `packed` bytes may unpack to."""
    return max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * packed)


def file_limit(packed: int) -> int:
    """Return the largest number of bytes that one file of `packed` bytes may unpack to."""
    return min(MAX_FILE_BYTES, archive_limit(packed))


def file_error(file: str, problem: str) -> InputError:
    """Return the error, in one printable line, that names a data file and its problem."""
    return InputError(printable(f"data file {file}: {problem}"))


def expect(condition: bool, file: str, problem: str) -> None:
    """Raise InputError, naming the file, unless `condition` holds."""
    if not condition:
        raise file_error(file, problem)


@contextmanager
def parsing(file: str, problem: str = "truncated or damaged") -> Iterator[None]:
    """Turn the errors of libraries on content that they cannot parse into an InputError that names `file`."""
    try:
        yield
    except InputError:
        raise
    except imported_errors(*PARSING_ERRORS, "pyarrow:ArrowException", "scipy.io.matlab:MatReadError") as error:
        raise file_error(file, f"{problem} ({in_one_line(error)})") from error


def in_one_line(error: Exception) -> str:
    """Return the message of another library's error: printable, on one line, and shortened."""
    return printable(" ".join(str(error)[: 2 * SHOWN].split())[:SHOWN]) or type(error).__name__


def listed(names: Iterable[str]) -> str:
    """Join names that a file contains, for a message: printable, and cut if there are many."""
    text = ", ".join(names)
    return printable(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...")


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file for reading. Raises InputError for anything else; a pipe is refused without waiting."""
    with system_errors(path, "read"):
        file = os.fdopen(os.open(path, os.O_RDONLY | NO_WAITING), "rb")
    with file:
        expect(stat.S_ISREG(os.fstat(file.fileno()).st_mode), str(path), "not a file")
        yield file


def file_size(file: IO[bytes]) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def read_regular(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes; a larger one is refused before any of it is read."""
    with open_regular(path) as file:
        expect(file_size(file) <= limit, str(path), f"{file_size(file):,} bytes; at most {limit:,} are read")
    return read_bytes(path, limit)


def read_stream(stream: IO[bytes] | io.BufferedIOBase, name: str, limit: int) -> bytes:
    """Read a stream. Raises InputError, naming the file, as soon as it has more than `limit` bytes."""
    content = io.BytesIO()
    while piece := stream.read(CHUNK_BYTES):
        expect(content.tell() + len(piece) <= limit, name, f"it unpacks to more than {limit:,} bytes")
        content.write(piece)
    return content.getvalue()


class LimitedStream(io.RawIOBase):
    """A stream that raises InputError, naming the file, beyond byte `limit` or for more than `chunk` bytes at once.

    Libraries that read archives take lengths from the archive and read as many bytes at once as the archive claims.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, name: str, limit: int, chunk: int) -> None:
        super().__init__()
        self._stream, self._name, self._limit, self._chunk = stream, name, limit, chunk

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and offset > self._limit:
            raise self._too_large()
        return self._stream.seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        wanted = self._chunk + 1 if size is None or size < 0 else size
        if wanted > self._chunk + 1:
            problem = f"a part of it says that it has {wanted:,} bytes; at most {self._chunk:,} are read"
            raise file_error(self._name, problem)
        content = self._stream.read(wanted)
        if len(content) > self._chunk or self._stream.tell() > self._limit:
            raise self._too_large()
        return content

    def _too_large(self) -> InputError:
        problem = f"it unpacks to more than {self._limit:,} bytes, or has a part of {self._chunk:,}"
        return file_error(self._name, problem)
