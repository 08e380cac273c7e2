"""Sets converted once and kept as arrays on disk, so that a second start maps them into memory at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from platformdirs import user_cache_path

from ..core.errors import InputError
from ..files import create_folder, flush_folder, read_json, said_of, write_atomically
from .readers.bounded import opened

FORMAT = 2
DESCRIPTION = "set.json"  # written last; an entry without it does not exist
ARRAY = re.compile(r"[\w-]+\.npy")
ENTRY = re.compile(r"\w+-[0-9a-f]{12}")  # names of entries: the set's, and what `key` gives
TEMPORARY = re.compile(r"\.tmp-fedflat-([\w-]+)-[0-9a-f]{16}")  # of an entry that is being made


def cache_folder() -> Path:
    """Where converted sets are kept: $FEDFLAT_CACHE, else the user's cache folder."""
    given = os.environ.get("FEDFLAT_CACHE")
    return Path(given).expanduser() if given else user_cache_path("fedflat")


def key(folder: Path, **settings: Any) -> str:
    """Twelve hexadecimal digits that change with the folder of the files and with how they are read.

    Not with the files themselves: changed files replace the entry instead of adding a second one.
    """
    text = json.dumps([str(folder.resolve()), settings], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class SourceFiles:
    """The files that an entry is made from."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self._folder, self._paths = folder, files

    @cached_property
    def files(self) -> list[list[Any]]:
        """Name, size in bytes and time of change in nanoseconds of each, as they were when this was first asked for."""
        with said_of(self._folder, "read"):
            status = [(str(path.relative_to(self._folder)), path.stat()) for path in self._paths]
        return [[name, some.st_size, some.st_mtime_ns] for name, some in status]

    @cached_property
    def content(self) -> str:
        """A digest of the names and the contents, for which all files are read once."""
        sums = [[str(path.relative_to(self._folder)), _sum(path)] for path in self._paths]
        return hashlib.sha256(json.dumps(sums).encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Raise InputError if a file is not as it was when this was first asked: what was read may be half of each."""
        if SourceFiles(self._folder, self._paths).files != self.files:
            raise InputError(f"data folder {self._folder}: its files changed while they were read; start again")


class Writer:
    """The arrays of an entry that is being made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts: dict[str, Any] = {}

    def create(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """A new array on disk to be filled row by row; its room is taken at once, as a full disk kills later on."""
        path = self._folder / f"{name}.npy"
        with _writing(self._folder.parent):
            array: np.ndarray = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            if hasattr(os, "posix_fallocate"):
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array

    def add(self, name: str, array: np.ndarray) -> None:
        """Keep a whole array."""
        with _writing(self._folder.parent):
            np.save(self._folder / f"{name}.npy", array, allow_pickle=False)

    def finish(self, sources: SourceFiles) -> None:
        """Write checksums, facts and what it was made from; the entry is whole, and on disk, after this."""
        with _writing(self._folder.parent):
            sums = {path.name: _sum(path, flush=True) for path in sorted(self._folder.glob("*.npy"))}
            made_from = {"files": sources.files, "content": sources.content}
            sources.check_unchanged()
            described = {"format": FORMAT, "sums": sums, "facts": self.facts, "sources": made_from}
            _describe(self._folder, described)


@dataclass(frozen=True)
class Entry:
    """A converted set on disk."""

    folder: Path
    described: dict[str, Any]  # what its description says
    arrays: dict[str, np.ndarray]  # mapped into memory copy-on-write: pages are read when they are used

    @property
    def facts(self) -> dict[str, Any]:
        """What else is known of the set, such as the names of its domains."""
        facts: dict[str, Any] = self.described["facts"]
        return facts

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that tell the arrays of two entries apart."""
        return hashlib.sha256(json.dumps(self.described["sums"]).encode()).hexdigest()[:8]

    def array(self, name: str) -> np.ndarray:
        """The array `name`."""
        return self.arrays[name]

    def has(self, name: str) -> bool:
        """True if the entry has an array of this name."""
        return name in self.arrays

    def is_of(self, sources: SourceFiles) -> bool:
        """True if it was made from these files: at once if no time of change differs, else by their contents."""
        kept = self.described["sources"]
        if kept["files"] == sources.files:
            return True
        same_names = [some[:2] for some in kept["files"]] == [some[:2] for some in sources.files]
        return same_names and bool(kept["content"] == sources.content)


def entry(name: str, sources: SourceFiles, build: Callable[[Writer], None]) -> Entry:
    """The entry `name` of the cache, made by `build` if it is missing, damaged or made from other contents.

    An entry appears whole or not at all, and its checksums are compared whenever it is opened. One made from the same
    contents is used, whatever the files' times; one made from others is replaced.
    """
    folder = cache_folder() / name
    found = _opened(folder)
    if found is not None and found.is_of(sources):
        _note(found, sources)
        return found
    return _built(folder, sources, build)


def check(folder: Path) -> list[tuple[str, str]]:
    """Of every entry in the cache folder `folder`: its name, and what is wrong with it in words, empty if nothing is.

    Folders that an ended conversion has left are among them; of one that is going on nothing is said.
    """
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if ENTRY.fullmatch(path.name) and path.is_dir():
            found.append((path.name, _problem(path)))
        elif (match := TEMPORARY.fullmatch(path.name)) and _is_folder(path) and not _busy(folder / match[1]):
            found.append((path.name, "left by a conversion that was ended; the next one of this set removes it"))
    return found


def _problem(folder: Path) -> str:
    try:
        _read(folder)
    except InputError as error:
        return str(error)
    return ""


def _opened(folder: Path) -> Entry | None:
    """The entry if it is there and its files have their checksums."""
    try:
        return _read(folder)
    except InputError:
        return None


def _read(folder: Path) -> Entry:
    """The entry in `folder`. Raises InputError, saying what is wrong with it."""
    try:
        before = folder.stat()
        described = _description(folder)
        wrong = [name for name, found in described["sums"].items() if _sum(folder / name) != found]
        if wrong:
            raise InputError(f"{wrong[0]} is damaged: its checksum differs")
        arrays = {name.removesuffix(".npy"): _mapped(folder / name) for name in described["sums"]}
        if not os.path.samestat(before, folder.stat()):  # arrays of two conversions must not be mixed
            raise InputError("replaced while it was read")
    except OSError as error:
        raise InputError(f"{Path(error.filename or folder).name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise error if isinstance(error, InputError) else InputError("damaged") from error
    return Entry(folder, described, arrays)


def _description(folder: Path) -> dict[str, Any]:
    """What the description of an entry says. Raises InputError, KeyError or TypeError if it is not one."""
    described: dict[str, Any] = read_json(folder / DESCRIPTION)
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise InputError(f"{DESCRIPTION} is not of format {FORMAT}")
    if described.pop("sum") != _sum_of_text(described):
        raise InputError(f"{DESCRIPTION} is damaged: its checksum differs")
    if not all(ARRAY.fullmatch(name) for name in described["sums"]):
        raise InputError(f"{DESCRIPTION} names files that are no arrays")
    return described


def _describe(folder: Path, described: dict[str, Any]) -> None:
    """Write the description of an entry with its own checksum."""
    text = json.dumps(described | {"sum": _sum_of_text(described)})
    write_atomically(folder / DESCRIPTION, lambda path: path.write_text(text))


def _mapped(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    return array


def _note(found: Entry, sources: SourceFiles) -> None:
    """Keep new times of unchanged files, where that can be written; their contents need not be compared again then."""
    if found.described["sources"]["files"] == sources.files:
        return
    noted = found.described | {"sources": {"files": sources.files, "content": sources.content}}
    with suppress(InputError, OSError, KeyError, TypeError), _alone(found.folder):
        if _description(found.folder) == found.described:  # nobody has replaced it meanwhile
            _describe(found.folder, noted)


def _built(folder: Path, sources: SourceFiles, build: Callable[[Writer], None]) -> Entry:
    with _writing(folder.parent):
        create_folder(folder.parent)
    with _alone(folder) as alone:
        if alone:
            _sweep(folder)
        made = _opened(folder)
        if made is None or not made.is_of(sources):  # nobody has made it meanwhile
            _make(folder, sources, build)
            made = _opened(folder)
    if made is None:
        raise InputError(f"cache folder {folder} cannot be read back")
    return made


def _sweep(folder: Path) -> None:
    """Remove what ended conversions of this entry have left; nobody else makes it, as its lock is held."""
    with _writing(folder.parent):
        for path in folder.parent.iterdir():
            match = TEMPORARY.fullmatch(path.name)
            if match and match[1] == folder.name and _is_folder(path):
                shutil.rmtree(path)


def _is_folder(path: Path) -> bool:
    """True for a folder, false for a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _make(folder: Path, sources: SourceFiles, build: Callable[[Writer], None]) -> None:
    temporary = folder.with_name(f".tmp-fedflat-{folder.name}-{secrets.token_hex(8)}")
    with _writing(folder.parent):
        temporary.mkdir()  # for whom the user's umask says
    try:
        writer = Writer(temporary)
        _ = sources.files  # before anything is read, so that a later change is noticed
        build(writer)
        writer.finish(sources)
        with _writing(folder.parent):
            _replace(temporary, folder, sources)
            flush_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(temporary: Path, folder: Path, sources: SourceFiles) -> None:
    """Move the new entry to its place; who has mapped an old one keeps it.

    Without locks another process may have made one meanwhile, which is as good.
    """
    aside = folder.with_name(f".tmp-fedflat-{folder.name}-{secrets.token_hex(8)}")
    if folder.exists():
        found = _opened(folder)
        if found is not None and found.is_of(sources):
            return
        folder.rename(aside)
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """One process at a time makes an entry; the others wait for it. False where the file system has no locks."""
    with _writing(folder.parent):
        handle = os.open(_lock(folder), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield _taken(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def _taken(handle: int, kind: int) -> bool:
    """Take a lock; false if that cannot be."""
    try:
        fcntl.flock(handle, kind)
    except OSError:
        return False
    return True


def _busy(folder: Path) -> bool:
    """True if some process makes the entry in `folder`, as far as can be told."""
    try:
        handle = os.open(_lock(folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _taken(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)


def _lock(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises InputError, naming FEDFLAT_CACHE, where the cache `folder` cannot be written or is full."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cache folder {folder} cannot be written: {error.strerror}; set FEDFLAT_CACHE") from error


def _sum(path: Path, flush: bool = False) -> str:
    """The SHA-256 of a file, after it is on disk if `flush`."""
    with opened(path) as file:
        if flush:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _sum_of_text(described: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
