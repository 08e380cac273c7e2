"""Sets converted once and kept as arrays on disk, so that a second start maps them into memory at once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from platformdirs import user_cache_path

from ..core.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
DESCRIPTION = "set.json"  # written last; an entry without it does not exist


def cache_folder() -> Path:
    """Where converted sets are kept: $FEDFLAT_CACHE, else the user's cache folder."""
    given = os.environ.get("FEDFLAT_CACHE")
    return Path(given).expanduser() if given else user_cache_path("fedflat")


def key(folder: Path, files: list[Path], **settings: Any) -> str:
    """Twelve hexadecimal digits that change with the files (name, size, time) and with how they are read."""
    facts = [(str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    text = json.dumps([FORMAT, str(folder.resolve()), facts, settings], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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

    def finish(self) -> None:
        """Write checksums and facts; the entry is whole after this."""
        with _writing(self._folder.parent):
            sums = {path.name: _sum(path) for path in sorted(self._folder.glob("*.npy"))}
            described = {"format": FORMAT, "sums": sums, "facts": self.facts}
            (self._folder / DESCRIPTION).write_text(json.dumps(described | {"sum": _sum_of_text(described)}))


@dataclass(frozen=True)
class Entry:
    """A converted set on disk."""

    folder: Path
    facts: dict[str, Any]
    digest: str  # of all arrays

    def array(self, name: str) -> np.ndarray:
        """The array `name`, mapped into memory copy-on-write: pages are read when they are used."""
        array: np.ndarray = np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        return array

    def has(self, name: str) -> bool:
        """True if the entry has an array of this name."""
        return (self.folder / f"{name}.npy").exists()


def entry(name: str, build: Callable[[Writer], None]) -> Entry:
    """The entry `name` of the cache, made by `build` if it is missing or damaged.

    An entry appears whole or not at all, and its checksums are compared whenever it is opened.
    """
    folder = cache_folder() / name
    return _opened(folder) or _built(folder, build)


def _opened(folder: Path) -> Entry | None:
    """The entry if it is there and its files have their checksums."""
    try:
        described = json.loads((folder / DESCRIPTION).read_text())
        whole = described.pop("sum") == _sum_of_text(described) and described["format"] == FORMAT
        sums = described["sums"]
        if whole and all(_sum(folder / name) == sums[name] for name in sums):
            return Entry(folder, described["facts"], hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:8])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _built(folder: Path, build: Callable[[Writer], None]) -> Entry:
    with _writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if (made := _opened(folder)) is None:  # nobody has made it meanwhile
            _make(folder, build)
            made = _opened(folder)
    if made is None:
        raise InputError(f"cache folder {folder} cannot be read back")
    return made


def _make(folder: Path, build: Callable[[Writer], None]) -> None:
    with _writing(folder.parent):
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".tmp-"))
    try:
        writer = Writer(temporary)
        build(writer)
        writer.finish()
        with _writing(folder.parent):
            temporary.chmod(0o755)
            _replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(temporary: Path, folder: Path) -> None:
    """Move the new entry to its place; one that another process put there meanwhile is as good."""
    if folder.exists() and _opened(folder) is None:
        shutil.rmtree(folder)
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time makes an entry; the others wait for it, where the system has such locks."""
    if fcntl is None:
        yield
        return
    with _writing(folder.parent):
        file = (folder.parent / f".{folder.name}.lock").open("w")
    with file:
        with suppress(OSError):  # a file system without locks: the work may be done twice
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raises InputError, naming FEDFLAT_CACHE, where the cache `folder` cannot be written or is full."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cache folder {folder} cannot be written: {error.strerror}; set FEDFLAT_CACHE") from error


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum_of_text(described: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
