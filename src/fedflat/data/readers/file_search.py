"""Search for files by name in a folder, its subfolders and the archives in them, so that users need not unpack them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from ...core.errors import InputError, printable
from ...files import system_errors
from .untrusted_files import (
    CHUNK_BYTES,
    MAX_DIRECTORY_BYTES,
    MAX_FILE_BYTES,
    MAX_HEADER_BYTES,
    MAX_MEMBERS,
    LimitedStream,
    archive_limit,
    expect,
    file_limit,
    file_size,
    listed,
    open_regular,
    parsing,
    read_regular,
    read_stream,
)

Reader = Callable[[], bytes]
GZIP = b"\x1f\x8b"  # the first bytes of a gzip file
# Other compressions take as much memory as their file claims, and no data set needs them.
ZIP_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def plain_files(folder: Path) -> list[Path]:
    """Return every file below `folder` that is not hidden, sorted; links to folders are not followed.

    Raises InputError for a folder that cannot be read: its pictures would be missing without notice.
    """
    files, folders = [], [folder]
    while folders:
        current = folders.pop()
        with system_errors(current, "read"), os.scandir(current) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(current / entry.name)
                # A link to a file counts; one that leads to itself is no file.
                elif entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path):
                    files.append(current / entry.name)
    return sorted(files)


def find(folder: Path, names: Collection[str]) -> dict[str, Reader] | None:
    """Return a reader for each file in `names`, plain, gzipped or in an archive below `folder`; None if no file exists.

    Raises InputError, naming the file, if only some exist or an archive is damaged.
    """
    readers: dict[str, Reader] = {}
    files = plain_files(folder)
    for path in files:
        if _bare_name(path.name) in names:
            read = _read_gzip if path.suffix == ".gz" else read_regular
            readers.setdefault(_bare_name(path.name), partial(read, path))
    if not readers:
        for path in files:
            with parsing(str(path), "not a readable archive"):
                if path.name.endswith((".tar", ".tar.gz", ".tgz")):
                    readers |= _tar_members(path, names)
                elif path.suffix == ".zip":
                    readers |= _zip_members(path, names)
    missing = [name for name in names if name not in readers]
    if len(missing) == len(names):
        return None
    if missing:
        where = printable(str(folder))
        raise InputError(f"data folder {where} has no file {missing[0]} ({len(missing)} of {len(names)} are missing)")
    return {name: parsing(name)(readers[name]) for name in names}  # errors of unpacking name the file


def _bare_name(name: str) -> str:
    """Return the name of a file without its folders and without `.gz`."""
    return PurePosixPath(name).name.removesuffix(".gz")


def _read_gzip(path: Path) -> bytes:
    with open_regular(path) as file, gzip.GzipFile(fileobj=file) as stream:
        return read_stream(stream, path.name, file_limit(file_size(file)))


def _tar_members(path: Path, names: Collection[str]) -> dict[str, Reader]:
    readers: dict[str, Reader] = {}
    with _open_tar(path, MAX_HEADER_BYTES) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        number = 0
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # typeshed lacks it; tarfile keeps all it has seen
            number += 1
            expect(number <= MAX_MEMBERS, str(path), f"more than {MAX_MEMBERS:,} files in an archive")
            expect(member.size >= 0, str(path), "damaged: a file of negative size")  # tarfile would never end
            if _bare_name(member.name) in names and member.isreg() and not member.issparse():
                read = partial(_read_tar_member, path, member.name, member.offset_data, member.size)
                readers[_bare_name(member.name)] = read
    return readers


@contextmanager
def _open_tar(path: Path, chunk: int) -> Iterator[LimitedStream]:
    """Open a tar archive, unpacked if it is gzipped; at most `chunk` bytes are read at a time."""
    with open_regular(path) as file:
        gzipped = file.read(len(GZIP)) == GZIP
        file.seek(0)
        limit = archive_limit(file_size(file))
        with gzip.GzipFile(fileobj=file) if gzipped else file as stream:
            yield LimitedStream(stream, str(path), limit, chunk)


def _read_tar_member(path: Path, name: str, start: int, size: int) -> bytes:
    """Read the file `name` of a tar archive: `size` bytes from byte `start`, unpacked if they are gzipped once more."""
    expect(size <= MAX_FILE_BYTES, name, f"{size:,} bytes; at most {MAX_FILE_BYTES:,} are read")
    content = io.BytesIO()
    with _open_tar(path, CHUNK_BYTES) as stream:
        stream.seek(start)
        while content.tell() < size and (piece := stream.read(min(CHUNK_BYTES, size - content.tell()))):
            content.write(piece)
    expect(content.tell() == size, name, f"truncated: {content.tell()} bytes of {size}")
    if not name.endswith(".gz"):
        return content.getvalue()
    limit = file_limit(min(size, path.stat().st_size))  # packed twice, it may be no larger than packed once
    content.seek(0)
    return read_stream(gzip.GzipFile(fileobj=content), name, limit)


def _zip_members(path: Path, names: Collection[str]) -> dict[str, Reader]:
    with open_zip(path) as archive:
        members = archive.infolist()
        expect(len(members) <= MAX_MEMBERS, str(path), f"more than {MAX_MEMBERS:,} files in an archive")
        wanted = [member for member in members if _bare_name(member.filename) in names]
        return {_bare_name(member.filename): partial(read_zip_member, path, member) for member in wanted}


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive; its directory is limited in size."""
    with open_regular(path) as file:
        stream = LimitedStream(file, str(path), file_size(file), MAX_DIRECTORY_BYTES)
        with zipfile.ZipFile(stream) as archive:
            yield archive


def read_zip_member(path: Path, member: zipfile.ZipInfo) -> bytes:
    """Read a file of a zip archive, unpacked if it is gzipped once more. Raises InputError if the file is too large."""
    supported = member.compress_type in ZIP_COMPRESSIONS
    expect(supported, str(path), f"{listed([member.filename])} is packed in a way not read")
    limit = file_limit(min(member.compress_size, path.stat().st_size))
    with open_zip(path) as archive, archive.open(member) as stream:
        if not member.filename.endswith(".gz"):
            return read_stream(stream, member.filename, limit)
        # Packed twice: neither the inner nor the outer content may be larger than if it was packed once.
        once = LimitedStream(stream, member.filename, limit, CHUNK_BYTES)
        return read_stream(gzip.GzipFile(fileobj=once), member.filename, limit)
