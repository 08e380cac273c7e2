"""Files of a folder by name, looked for in subfolders and inside archives, so that nothing need be unpacked."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ...core.errors import InputError, printable
from ...files import said_of
from .bounded import Bounded, content, gathered, opened, size_of
from .bounds import CONTENT, DIRECTORY, HEADER, MEMBERS, PIECE, RATIO, SMALL, allowed
from .part import expect, listed, parsing

Reader = Callable[[], bytes]
GZIP = b"\x1f\x8b"  # how a gzip file begins
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take memory as their file says, and no set needs them


def plain_files(folder: Path) -> list[Path]:
    """Every file below `folder` that is not hidden, in order; links to folders are not followed.

    Raises InputError for a folder that cannot be read: pictures would be missing without a word.
    """
    found, waiting = [], [folder]
    while waiting:
        inside = waiting.pop()
        with said_of(inside, "read"), os.scandir(inside) as entries:
            for one in entries:
                if one.name.startswith("."):
                    continue
                if one.is_dir(follow_symlinks=False):
                    waiting.append(inside / one.name)
                elif _is_file(one):
                    found.append(inside / one.name)
    return sorted(found)


def _is_file(one: os.DirEntry[str]) -> bool:
    try:
        return one.is_file()
    except OSError:  # links that go round in a circle
        return False


def find(folder: Path, names: list[str]) -> dict[str, Reader] | None:
    """How to read each of the files `names`, plain, gzipped or in an archive below `folder`; None if none is there.

    Raises InputError, naming the file, if only some are there or an archive is damaged.
    """
    known: dict[str, Reader] = {}
    files = plain_files(folder)
    for path in files:
        if _bare(path.name) in names:
            known.setdefault(_bare(path.name), _of_file(path))
    if not known:
        for path in files:
            known |= _members(path, names)
    missing = [name for name in names if name not in known]
    if len(missing) == len(names):
        return None
    if missing:
        where = printable(str(folder))
        raise InputError(f"data folder {where} has no file {missing[0]} ({len(missing)} of {len(names)} are missing)")
    return {name: _careful(name, known[name]) for name in names}


def _of_file(path: Path) -> Reader:
    return (lambda: _from_gzip(path)) if path.suffix == ".gz" else (lambda: content(path))


def _from_gzip(path: Path) -> bytes:
    with opened(path) as file, gzip.GzipFile(fileobj=file) as stream:
        return gathered(stream, path.name, allowed(size_of(file)))


def _members(path: Path, names: Collection[str]) -> dict[str, Reader]:
    """Those of the files `names` that are inside an archive; none if `path` is no archive."""
    with parsing(str(path), "not a readable archive"):
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            return _in_tar(path, names)
        return _in_zip(path, names) if path.suffix == ".zip" else {}


def _in_tar(path: Path, names: Collection[str]) -> dict[str, Reader]:
    found: dict[str, Reader] = {}
    with _untarred(path, HEADER) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        number = 0
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile keeps what it has seen
            number += 1
            expect(number <= MEMBERS, str(path), f"more than {MEMBERS:,} files in an archive")
            expect(member.size >= 0, str(path), "damaged: a file of negative size")  # tarfile would go round in circles
            if _bare(member.name) in names and member.isreg() and not member.issparse():
                found[_bare(member.name)] = _at(path, member.name, member.offset_data, member.size)
    return found


@contextmanager
def _untarred(path: Path, once: int) -> Iterator[Bounded]:
    """The bytes of a tar archive, unzipped if they are zipped, `once` at a time."""
    with opened(path) as file:
        zipped = file.read(len(GZIP)) == GZIP
        file.seek(0)
        most = max(SMALL, RATIO * size_of(file))
        with gzip.GzipFile(fileobj=file) if zipped else file as stream:
            yield Bounded(stream, str(path), most, once)


def _at(path: Path, name: str, start: int, size: int) -> Reader:
    """How to read the file `name` of a tar archive, `size` bytes from `start` on."""

    def read() -> bytes:
        expect(size <= CONTENT, name, f"{size:,} bytes; at most {CONTENT:,} are read")
        with _untarred(path, PIECE) as stream:
            stream.seek(start)
            there = io.BytesIO()
            while there.tell() < size and (piece := stream.read(min(PIECE, size - there.tell()))):
                there.write(piece)
        expect(there.tell() == size, name, f"truncated: {there.tell()} bytes of {size}")
        return _unzipped(name, there.getvalue(), path.stat().st_size)

    return read


def _unzipped(name: str, packed: bytes, archive: int) -> bytes:
    """What a file inside an archive of so many bytes holds; packed twice, it may be no larger than packed once."""
    if not name.endswith(".gz"):
        return packed
    return gathered(gzip.GzipFile(fileobj=io.BytesIO(packed)), name, allowed(min(len(packed), archive)))


def _in_zip(path: Path, names: Collection[str]) -> dict[str, Reader]:
    with _unpacked(path) as archive:
        listing = archive.infolist()
        expect(len(listing) <= MEMBERS, str(path), f"more than {MEMBERS:,} files in an archive")
        return {_bare(one.filename): _of_zip(path, one) for one in listing if _bare(one.filename) in names}


@contextmanager
def _unpacked(path: Path) -> Iterator[zipfile.ZipFile]:
    with opened(path) as file, zipfile.ZipFile(Bounded(file, str(path), size_of(file), DIRECTORY)) as archive:
        yield archive


def _of_zip(path: Path, member: zipfile.ZipInfo) -> Reader:
    def read() -> bytes:
        expect(member.compress_type in PACKED, str(path), f"{listed([member.filename])} is packed in a way not read")
        most = allowed(min(member.compress_size, path.stat().st_size))
        with _unpacked(path) as archive, archive.open(member) as stream:
            if not member.filename.endswith(".gz"):
                return gathered(stream, member.filename, most)
            once = Bounded(stream, member.filename, most, PIECE)  # packed twice; neither may be more than packed once
            return gathered(gzip.GzipFile(fileobj=once), member.filename, most)

    return read


def _careful(name: str, read: Reader) -> Reader:
    def reading() -> bytes:
        with parsing(name):
            return read()

    return reading


def _bare(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".gz")
