"""What Linux, macOS and Windows do differently: locks, opening and syncing files, memory, and what is not offered.

No other module needs to know which system it runs on, except for the end of processes (`parent_process`).
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from math import inf
from pathlib import Path
from time import sleep
from typing import Any

from .core.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

IS_POSIX = hasattr(os, "fork")  # Windows starts no process that inherits files under their numbers, or has a group
HAS_FOLDER_HANDLES = hasattr(os, "O_DIRECTORY")  # a folder can be opened, and so be synced and locked
NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # flag of `os.open`: a pipe is opened at once
LOCKED_BYTE = 2**31 - 2  # which is locked on Windows: beyond the content, because no other process may read it
POLL_SECONDS = 0.05  # between two attempts to get a lock on Windows


def open_no_link(path: Path | str, flags: int, mode: int = 0o777) -> int:
    """Open a file, but no symbolic link, as `os.open` does. Raises OSError."""
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):  # Windows: only administrators make links there
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), mode)


def lock(handle: int, wait: bool = False) -> None:
    """Lock an open file or folder against other handles; closing it, or the end of the process, releases the lock.

    With `wait`, wait for the lock. Raises OSError if another handle has the lock, or if the file system has no locks.
    Content is neither read nor changed, and stays readable for others.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    while not _locks_byte(handle):
        if not wait:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        sleep(POLL_SECONDS)


def _locks_byte(handle: int) -> bool:
    """Lock the byte `LOCKED_BYTE` on Windows; return False if another handle has the lock."""
    msvcrt: Any = import_module("msvcrt")
    position = os.lseek(handle, 0, os.SEEK_CUR)
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except PermissionError:
        return False
    finally:
        os.lseek(handle, position, os.SEEK_SET)
    return True


def flush_file(path: Path) -> None:
    """Wait until the content of a file is on disk. Raises OSError."""
    _sync(path, os.O_RDWR)  # Windows syncs only what may be written


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk; Windows offers nothing of the kind. Raises OSError."""
    if HAS_FOLDER_HANDLES:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def memory_size() -> float:
    """Return the bytes of memory of this machine; infinity if the system does not tell (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return inf


def refuse_on_windows(option: str, what: str, instead: str) -> None:
    """Raise InputError, naming the `option` that needs `what`, on Windows."""
    if not IS_POSIX:
        raise InputError(f"{option}: {what} are not offered on Windows; {instead}")


def not_offered() -> list[str]:
    """Name what this system does not offer, in the words of the table in docs/howto/devices.md."""
    is_linux = sys.platform == "linux"
    offered = {
        "worker processes and --jobs": IS_POSIX,
        "ranks": IS_POSIX,
        "federations under Flower": IS_POSIX,
        "clients' records in a file": hasattr(os, "preadv"),
        "new names kept at a power failure": HAS_FOLDER_HANDLES,
        "files that only their owner can read": IS_POSIX,
        "folders of killed processes removed": HAS_FOLDER_HANDLES,
        "notice of suspended workers": hasattr(os, "waitid"),
        "memory limit for tokenizers": is_linux and find_spec("resource") is not None,
        "end of everything that a killed process started": is_linux,
        "peak memory in --dry-run": is_linux,
    }
    return [name for name, is_here in offered.items() if not is_here]
