"""Files that are written completely or not at all, read only up to a stated size, and locked by one process at a time.

Errors of the operating system become an `InputError` of one line that names the file, unless a function's docstring
says otherwise.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import Any

from platformdirs import user_cache_path

from .core.errors import InputError, imported_errors, printable
from .core.toml import parse_toml
from .operating_system import HAS_FOLDER_HANDLES, NO_WAITING, flush_file, flush_folder, lock, open_no_link

TEXT = 64 * 2**20  # largest TOML or JSON file that is read, in bytes; usual files have some kilobytes
GROWTH = 2**20  # bytes by which a file may grow while it is opened
SPEEDS = "speed.json"  # file in the cache folder: the seconds that a gradient takes, by model and machine
TEMPORARY = re.compile(r"\.tmp-fedflat-[0-9a-f]{16}(\.\w+)?")
ARROW = "pyarrow:ArrowException"
WRITING = (OSError, "safetensors:SafetensorError", ARROW)  # what is raised when a disk is full
# What a parser raises on hostile content.
PARSING = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, ARROW)
PUBLIC, PRIVATE = 0o666, 0o600  # modes of new files, before the user's umask
FOLDER = 0o777  # mode of new folders, before the user's umask
CHECK_INTERVAL = 0.05  # seconds between two attempts to get a lock
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # of file systems without locks, such as some of clusters
_fence: ContextVar[Callable[[], None]] = ContextVar("fence", default=lambda: None)


def cache_folder() -> Path:
    """Return the folder of converted data sets and fetched models: $FEDFLAT_CACHE, else the user's cache folder."""
    given = os.environ.get("FEDFLAT_CACHE")
    return Path(given).expanduser() if given else user_cache_path("fedflat")


def write_atomically(path: Path, write: Callable[[Path], object], private: bool = False) -> None:
    """Call `write` with a temporary path in the folder of `path`, then rename the temporary file to `path`.

    After an interruption, also a power failure, `path` holds either its old content or the complete new one: the
    content is on disk before the file is renamed, and the new name is on disk when this function returns. Only its
    owner can read a `private` file; other files get the permissions that the user's umask leaves. Raises InputError if
    the file cannot be written.
    """
    temporary = path.with_name(f".tmp-fedflat-{secrets.token_hex(8)}{path.suffix}")
    with system_errors(path, "written"):
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if private else PUBLIC))
            write(temporary)
            flush_file(temporary)
            check_fence()
            os.replace(temporary, path)
            flush_folder(path.parent)
        finally:
            with suppress(OSError):  # it would hide the error that is being raised
                temporary.unlink(missing_ok=True)


@contextmanager
def fenced(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before a file is renamed into its place inside the block; its error prevents that."""
    token = _fence.set(check)
    try:
        yield
    finally:
        _fence.reset(token)


def check_fence() -> None:
    """Call the function given to `fenced`, before a file is changed other than by `write_atomically`."""
    _fence.get()()


def make_folder(path: Path) -> None:
    """Make the folder `path` as `create_folder` does. Raises InputError if it cannot be made."""
    with system_errors(path, "made"):
        create_folder(path)


def create_folder(path: Path, mode: int = FOLDER) -> None:
    """Make the folder `path` and its missing parent folders, each with the permissions `mode` less the user's umask.

    The new folders are on disk when this function returns; otherwise a power failure could lose them together with
    the synced files in them. Raises OSError.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    for folder in (*reversed(missing), path):
        is_new = not folder.exists()
        folder.mkdir(mode, exist_ok=True)
        if is_new:
            with suppress(PermissionError):  # a folder of another user that may be written but not read
                flush_folder(folder.parent)


def write_text(path: Path, text: str, private: bool = False) -> None:
    """Write a file of UTF-8 text as `write_atomically` does; lines end in a line feed on every system."""
    write_atomically(path, lambda temporary: temporary.write_bytes(text.encode()), private)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in `folder`, not in its sub-folders.

    Call this function only inside `locked`, so that no other process is writing.
    """
    with system_errors(folder, "swept"):
        for path in folder.iterdir() if folder.is_dir() else ():
            if TEMPORARY.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode):
                path.unlink(missing_ok=True)


@contextmanager
def temporary_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Make a folder in `parent` that its owner alone can read, and remove it at the end of the block.

    Its name is `prefix` and a random part. First, folders with this prefix whose lock no process holds are removed:
    killed processes left them behind. Where folders cannot be locked (Windows) they stay.
    Raises InputError if no folder can be made.
    """
    with system_errors(parent, "written"):
        for path in parent.glob(f"{prefix}*") if HAS_FOLDER_HANDLES else ():
            _remove_abandoned(path)
        path = Path(mkdtemp(prefix=prefix, dir=parent))
        while (handle := _locked_folder(path)) is None and HAS_FOLDER_HANDLES:
            path = Path(mkdtemp(prefix=prefix, dir=parent))  # another process has removed the first as abandoned
    try:
        yield path
    finally:
        rmtree(path, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _locked_folder(path: Path) -> int | None:
    """Open the folder and lock it for as long as the handle is open; return None if that is not possible now."""
    try:
        handle = open_no_link(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:  # it is gone, or another user's
        return None
    try:
        lock(handle)
        if path.exists():  # else another process has removed it as abandoned
            return handle
    except OSError:  # another process holds the lock
        pass
    os.close(handle)
    return None


def _remove_abandoned(path: Path) -> None:
    """Remove a folder of this user if no process holds its lock."""
    with suppress(OSError):
        if path.lstat().st_uid == os.geteuid() and (handle := _locked_folder(path)) is not None:
            rmtree(path, ignore_errors=True)
            os.close(handle)


@contextmanager
def locked(path: Path, busy: str, patience: float = 0.0, needed: bool = True) -> Iterator[bool]:
    """Hold a lock on the file `path` inside the block; the system releases the lock however the process ends.

    The file is created if it is missing. Nothing is written to it, and a symbolic link is not followed. Raises
    InputError with the message `busy` if another process still holds the lock after `patience` seconds. On a file
    system without locks, raises InputError if the lock is `needed`, and otherwise yields False.
    """
    with system_errors(path, "locked"):
        handle = open_no_link(path, os.O_RDWR | os.O_CREAT, PUBLIC)
    try:
        is_held = _lock(handle, busy, patience)
        if needed and not is_held:
            raise InputError(f"{path} cannot be locked: its file system has no locks")
        yield is_held
    finally:
        os.close(handle)


def _lock(handle: int, busy: str, patience: float) -> bool:
    """Lock an open file; return False on a file system without locks."""
    end = monotonic() + patience
    while True:
        try:
            lock(handle)
            return True
        except OSError as error:
            if error.errno in NO_LOCKS:
                return False
            if monotonic() >= end:
                raise InputError(busy) from error
        sleep(CHECK_INTERVAL)


@contextmanager
def writing(folder: Path, busy: str, patience: float = 0.0, needed: bool = True) -> Iterator[None]:
    """Make `folder`, hold its lock file locked inside the block, and first remove killed processes' temporary files.

    Raises InputError if the folder cannot be made, or, with the message `busy`, if another process still holds the lock
    after `patience` seconds, or if the file system has no locks and the lock is `needed`.
    """
    make_folder(folder)
    with locked(folder / ".lock", busy, patience, needed) as is_held:
        if is_held:  # otherwise temporary files may be those of living processes
            sweep(folder)
        yield


def read_bytes(path: Path, most: int = TEXT) -> bytes:
    """Read a regular file of at most `most` bytes. Raises InputError."""
    with system_errors(path, "read"):
        handle = os.open(path, os.O_RDONLY | NO_WAITING)  # a pipe is refused, not waited for
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise InputError(f"{path} cannot be read: it is not a file")
            # Not `most`: `read` allocates that much memory at once. A file larger than its stated size is growing.
            content = b"" if facts.st_size > most else file.read(min(most, facts.st_size + GROWTH) + 1)
    if max(len(content), facts.st_size) > most:
        raise InputError(f"{path} cannot be read: it has more than {most:,} bytes")
    return content


def read_text(path: Path, most: int = TEXT) -> str:
    """Read a file of UTF-8 text. Raises InputError."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read: it is not UTF-8 text (byte {error.start})") from error


def read_json(path: Path, most: int = TEXT) -> Any:
    """Read a JSON file. Raises InputError, also if the file is nested too deep."""
    return parsed(path, lambda: json.loads(read_text(path, most)))


def read_toml(path: Path, most: int = TEXT) -> dict[str, Any]:
    """Read the table in a TOML file. Raises InputError, also if the file is nested too deep."""
    table: dict[str, Any] = parsed(path, lambda: parse_toml(read_text(path, most)))
    return table


def parsed(path: Path, parse: Callable[[], Any]) -> Any:
    """Return the result of `parse()`. Raises InputError, naming the file `path`, for any error on bad content."""
    try:
        return parse()
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{path} cannot be read: it is nested too deep") from error
    except imported_errors(*PARSING) as error:
        reason = f"{error}" if isinstance(error, OSError | ValueError) else f"{type(error).__name__} {error}"
        raise InputError(f"{path} cannot be read: {printable(' '.join(reason.split())[:200])}") from error


@contextmanager
def system_errors(path: Path, what: str) -> Iterator[None]:
    """Turn errors of the system, and of libraries that write files, into InputError: "`path` cannot be `what`: ..."."""
    try:
        yield
    except InputError:
        raise
    except imported_errors(*WRITING) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path} cannot be {what}: {reason}") from error
