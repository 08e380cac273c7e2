"""A cache on disk: data sets are converted to arrays once, and later starts map the arrays into memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from numpy.typing import DTypeLike, NDArray

from ..core.errors import InputError
from ..files import cache_folder, create_folder, read_json, system_errors, write_text
from ..operating_system import flush_file, flush_folder, lock, open_no_link
from .readers.untrusted_files import open_regular

# For NumPy's headers `ast.parse` is called, which before Python 3.12 may raise SystemError in two threads at once.
READING_HEADERS = threading.Lock()
FORMAT = 2
DESCRIPTION = "set.json"  # written last; an entry without this file counts as missing
ARRAY = re.compile(r"[\w-]+\.npy")
ENTRY = re.compile(r"\w+-[0-9a-f]{12}")  # names of entries: the data set's name, and a `key`
TEMPORARY = re.compile(r"\.tmp-fedflat-([\w-]+)-[0-9a-f]{16}")  # folders of incomplete entries


def key(folder: Path, **settings: Any) -> str:
    """Return twelve hexadecimal digits that depend on the folder of the files and on the `settings` of the conversion.

    The contents of the files have no influence: if files change, a new entry replaces the old one under the same name.
    """
    text = json.dumps([str(folder.resolve()), settings], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class SourceFiles:
    """The files that an entry of the cache is made from."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self.folder, self.paths = folder, files

    @cached_property
    def files(self) -> list[list[Any]]:
        """Name, size in bytes and modification time in nanoseconds of each file, at the first use of this property."""
        with system_errors(self.folder, "read"):
            status = [(str(path.relative_to(self.folder)), path.stat()) for path in self.paths]
        return [[name, some.st_size, some.st_mtime_ns] for name, some in status]

    @cached_property
    def content(self) -> str:
        """Digest of the names and the contents of the files; the first use of this property reads all files."""
        sums = [[str(path.relative_to(self.folder)), _checksum(path)] for path in self.paths]
        return hashlib.sha256(json.dumps(sums).encode()).hexdigest()


class RowFile:
    """An array on disk that grows at its end. numpy leaves room in its header for any number of rows."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any], cache: Path) -> None:
        self._file, self._shape, self._dtype, self._cache, self.number = file, shape, dtype, cache, 0
        with _writing(cache):
            self._write_header()

    def add(self, rows: NDArray[Any]) -> None:
        """Write `rows` (n, *shape). Raises InputError if the disk is full."""
        with _writing(self._cache):
            self._file.write(np.ascontiguousarray(rows.reshape(-1, *self._shape), dtype=self._dtype).data)
        self.number += len(rows)

    def finish(self) -> None:
        """Write the number of rows. Raises InputError if the disk is full."""
        with _writing(self._cache):
            self._file.seek(0)
            self._write_header()
            self._file.flush()

    def _write_header(self) -> None:
        described = {"descr": dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.number, *self._shape)}
        write_array_header_1_0(self._file, described)


class Writer:
    """Writes the arrays and the metadata of a new entry of the cache."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.metadata: dict[str, Any] = {}  # what arrays do not hold, such as the names of domains

    @contextmanager
    def rows(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[RowFile]:
        """Open a new array of rows of this `shape`, which is written to disk row by row and is never in memory."""
        with _writing(self._folder.parent):
            file = (self._folder / f"{name}.npy").open("wb")
        try:
            rows = RowFile(file, shape, np.dtype(dtype), self._folder.parent)
            yield rows
            rows.finish()
        finally:
            with suppress(OSError):  # which has been raised before: `finish` writes everything
                file.close()

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Write an array."""
        with _writing(self._folder.parent):
            np.save(self._folder / f"{name}.npy", array, allow_pickle=False)

    def finish(self, sources: SourceFiles) -> None:
        """Write the description: checksums, metadata and source files. After this the entry is complete and on disk."""
        with _writing(self._folder.parent):
            paths = sorted(self._folder.glob("*.npy"))
            for path in paths:
                flush_file(path)
            sums = {path.name: _checksum(path) for path in paths}
            made_from = {"files": sources.files, "content": sources.content}
            if SourceFiles(sources.folder, sources.paths).files != sources.files:  # parts of both versions may be read
                raise InputError(f"data folder {sources.folder}: its files changed while they were read; start again")
            description = {"format": FORMAT, "sums": sums, "facts": self.metadata, "sources": made_from}
            _write_description(self._folder, description)


@dataclass(frozen=True)
class Entry:
    """A converted data set on disk."""

    folder: Path
    description: dict[str, Any]  # the content of its description file
    arrays: dict[str, NDArray[Any]]  # mapped into memory copy-on-write: pages are read when they are used

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that differ between entries with different arrays."""
        return hashlib.sha256(json.dumps(self.description["sums"]).encode()).hexdigest()[:8]

    def is_of(self, sources: SourceFiles) -> bool:
        """Return whether the entry was made from these files.

        Contents are only compared if the names and sizes of the files are equal and the modification times are not.
        """
        recorded = self.description["sources"]
        if recorded["files"] == sources.files:
            return True
        same_names = [file[:2] for file in recorded["files"]] == [file[:2] for file in sources.files]
        return same_names and bool(recorded["content"] == sources.content)


def entry(name: str, sources: SourceFiles, build: Callable[[Writer], None]) -> Entry:
    """Return the entry `name` of the cache; `build` makes it if it is missing, damaged or made from other contents.

    Other processes see a complete entry or none, and the checksums are compared whenever an entry is opened. An entry
    from the same contents is used even if modification times differ; an entry from other contents is replaced.
    """
    folder = cache_folder() / name
    if found := _current(folder, sources):
        _record_times(found, sources)
        return found
    with _writing(folder.parent):
        create_folder(folder.parent)
    with _locked(folder) as is_held:
        if is_held:
            _remove_leftovers(folder)
        found = _current(folder, sources)
        if found is None:  # no other process made it before the lock was free
            _make(folder, sources, build)
            found = open_entry(folder)
    if found is None:
        raise InputError(f"cache folder {folder} cannot be read back")
    return found


def _current(folder: Path, sources: SourceFiles) -> Entry | None:
    """Return the entry in `folder` if it was made from `sources`; another one is not kept open, as Windows needs."""
    found = open_entry(folder)
    return found if found is not None and found.is_of(sources) else None


def open_entry(folder: Path) -> Entry | None:
    """Return the entry in `folder`; None if it is missing or damaged."""
    try:
        return _read(folder)
    except InputError:
        return None


def check(folder: Path) -> list[tuple[str, str]]:
    """Return (name, problem) of every entry in the cache folder `folder`; the problem of a sound entry is empty.

    The list includes folders of interrupted conversions, but not folders of conversions that are running.
    """
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if ENTRY.fullmatch(path.name) and path.is_dir():
            try:
                _read(path)
                found.append((path.name, ""))
            except InputError as error:
                found.append((path.name, str(error)))
        elif (entry_name := _unfinished(path)) and not _is_locked(folder / entry_name):
            found.append((path.name, "left by a conversion that was interrupted; the next one of this set removes it"))
    return found


def _read(folder: Path) -> Entry:
    """Read the entry in `folder`. Raises InputError that states the damage."""
    try:
        before = folder.stat()
        description = _read_description(folder)
        sums = description["sums"]
        wrong = [name for name, expected in sums.items() if _checksum(folder / name) != expected]
        if wrong:
            raise InputError(f"{wrong[0]} is damaged: its checksum differs")
        with READING_HEADERS:
            arrays = {
                name.removesuffix(".npy"): np.load(folder / name, mmap_mode="c", allow_pickle=False) for name in sums
            }
        if not os.path.samestat(before, folder.stat()):  # arrays of two conversions must not be mixed
            raise InputError("replaced while it was read")
    except OSError as error:
        raise InputError(f"{Path(error.filename or folder).name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, InputError) else InputError("damaged") from error
    return Entry(folder, description, arrays)


def _read_description(folder: Path) -> dict[str, Any]:
    """Read the description of an entry. Raises InputError, KeyError or TypeError if the file does not hold one."""
    description: dict[str, Any] = read_json(folder / DESCRIPTION)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InputError(f"{DESCRIPTION} is not of format {FORMAT}")
    if description.pop("sum") != _checksum_of(description):
        raise InputError(f"{DESCRIPTION} is damaged: its checksum differs")
    if not all(ARRAY.fullmatch(name) for name in description["sums"]):
        raise InputError(f"{DESCRIPTION} names files that are no arrays")
    return description


def _write_description(folder: Path, description: dict[str, Any]) -> None:
    """Write the description of an entry with its own checksum."""
    text = json.dumps(description | {"sum": _checksum_of(description)})
    write_text(folder / DESCRIPTION, text)


def _record_times(found: Entry, sources: SourceFiles) -> None:
    """Record new modification times of unchanged files, so that contents are not compared again; ignore a failure."""
    if found.description["sources"]["files"] == sources.files:
        return
    updated = found.description | {"sources": {"files": sources.files, "content": sources.content}}
    with suppress(InputError, OSError, KeyError, TypeError), _locked(found.folder):
        if _read_description(found.folder) == found.description:  # no other process has replaced it
            _write_description(found.folder, updated)


def _make(folder: Path, sources: SourceFiles, build: Callable[[Writer], None]) -> None:
    """Make the entry in a temporary folder, and move this folder to `folder`."""
    temporary = folder.with_name(f".tmp-fedflat-{folder.name}-{secrets.token_hex(8)}")
    with _writing(folder.parent):
        temporary.mkdir()  # its mode follows the user's umask
    try:
        writer = Writer(temporary)
        _ = sources.files  # before anything is read, so that a later change is detected
        build(writer)
        writer.finish(sources)
        with _writing(folder.parent):
            _replace(temporary, folder, sources)
            flush_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(temporary: Path, folder: Path, sources: SourceFiles) -> None:
    """Move the new entry to `folder`; a process that has mapped the arrays of the old entry can still read them.

    On a file system without locks, another process may have made the same entry already; that entry is kept.
    """
    old = folder.with_name(f".tmp-fedflat-{folder.name}-{secrets.token_hex(8)}")
    if folder.exists():
        if _current(folder, sources):
            return
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of interrupted conversions; the held lock shows that no other process converts."""
    with _writing(folder.parent):
        for path in folder.parent.iterdir():
            if _unfinished(path) == folder.name:
                shutil.rmtree(path)


def _unfinished(path: Path) -> str | None:
    """Return the name of the entry whose conversion uses the temporary folder `path`; None for any other path."""
    match = TEMPORARY.fullmatch(path.name)
    return match[1] if match and os.path.isdir(path) and not os.path.islink(path) else None


@contextmanager
def _locked(folder: Path, flags: int = os.O_RDWR | os.O_CREAT, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of an entry while the block runs, so that one process makes the entry and other processes wait.

    Yields False if the lock is not held: the file system has no locks, or, without `wait`, another process has it.
    """
    with _writing(folder.parent):
        path = folder.with_name(f".{folder.name}.lock")
        handle = open_no_link(path, flags, 0o666)
    with os.fdopen(handle, "rb"):
        is_held = False
        with suppress(OSError):
            lock(handle, wait)
            is_held = True
        yield is_held


def _is_locked(folder: Path) -> bool:
    """Return whether another process holds the lock of an entry, as far as the file system can tell."""
    try:
        with _locked(folder, os.O_RDONLY, wait=False) as is_held:
            return not is_held
    except InputError:  # the entry has no lock file that can be read
        return False


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn OSError into InputError that names the cache `folder`, which is full or cannot be written."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cache folder {folder} cannot be written: {error.strerror}; set FEDFLAT_CACHE") from error


def _checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _checksum_of(description: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()
