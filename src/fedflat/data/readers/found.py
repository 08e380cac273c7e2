"""Files of a folder by name, looked for in subfolders and inside archives, so that nothing need be unpacked."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from ...core.errors import InputError
from .part import in_one_line

Reader = Callable[[], bytes]
# RuntimeError: an encrypted zip file, or one packed in a way that Python does not know.
DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, KeyError, RuntimeError)


def plain_files(folder: Path) -> list[Path]:
    """Every file below `folder` that is not hidden, in order."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def find(folder: Path, names: list[str]) -> dict[str, Reader] | None:
    """How to read each of the files `names`, plain, gzipped or in an archive below `folder`; None if none is there.

    Raises InputError, naming the file, if only some are there or an archive is damaged.
    """
    known: dict[str, Reader] = {}
    files = plain_files(folder)
    for path in files:
        known.setdefault(_bare(path.name), _of_file(path))
    if not set(names) & known.keys():
        for path in files:
            known |= dict(_members(path))
    missing = [name for name in names if name not in known]
    if len(missing) == len(names):
        return None
    if missing:
        raise InputError(f"data folder {folder} has no file {missing[0]} ({len(missing)} of {len(names)} are missing)")
    return {name: _careful(name, known[name]) for name in names}


def _of_file(path: Path) -> Reader:
    if path.suffix == ".gz" and not _is_tar(path):
        return lambda: gzip.decompress(path.read_bytes())
    return path.read_bytes


def _members(path: Path) -> Iterator[tuple[str, Reader]]:
    """The files inside an archive, by their names without folders and `.gz`."""
    try:
        if _is_tar(path):
            with tarfile.open(path) as archive:
                names = [member.name for member in archive if member.isfile()]
            for name in names:
                yield _bare(name), lambda name=name: _unzipped(name, _from_tar(path, name))
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
            for name in names:
                yield _bare(name), lambda name=name: _unzipped(name, _from_zip(path, name))
    except DAMAGED as error:
        raise InputError(f"data file {path}: not a readable archive ({in_one_line(error)})") from error


def _from_tar(path: Path, name: str) -> bytes:
    with tarfile.open(path) as archive:
        member = archive.extractfile(name)
        return member.read() if member else b""


def _from_zip(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def _unzipped(name: str, content: bytes) -> bytes:
    return gzip.decompress(content) if name.endswith(".gz") else content


def _careful(name: str, read: Reader) -> Reader:
    def reading() -> bytes:
        try:
            return read()
        except DAMAGED as error:
            raise InputError(f"data file {name}: truncated or damaged ({in_one_line(error)})") from error

    return reading


def _is_tar(path: Path) -> bool:
    return path.name.endswith((".tar", ".tar.gz", ".tgz"))


def _bare(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".gz")
