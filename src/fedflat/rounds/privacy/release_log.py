"""The record of the sums that private rounds have released: a file beside the states from which they can be released.

Each line has a round, a tag of the sum, which says nothing without the key of the round, and a check of both.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from pathlib import Path

from ...core.errors import InputError
from ...files import PRIVATE, flush_folder, read_bytes, system_errors

Release = tuple[int, str]  # a round, and the tag of a sum of it, 32 hexadecimal digits
_LINE = re.compile(r"((\d{1,9}) ([0-9a-f]{32})) ([0-9a-f]{16})")
_PATTERN = "released-*.log"


def log_of(folder: Path, run: str) -> Path:
    """Where the releases of a run are kept in `folder`."""
    return folder / _PATTERN.replace("*", run)


def logs_in(folder: Path) -> list[Path]:
    """The logs of all runs whose states are, or were, in `folder`."""
    return sorted(folder.glob(_PATTERN))


def read_log(path: Path) -> frozenset[Release]:
    """The releases in the log `path`. Raises InputError, naming the line, if it is missing or damaged."""
    return _releases(_whole_lines(read_bytes(path)), path)


def add_to_log(path: Path, releases: frozenset[Release]) -> frozenset[Release]:
    """Add `releases` to the log `path`, unless it has them; all that it has, which is on disk when this returns.

    The file is made if it is missing, and its owner alone can read it. Raises InputError if it cannot be written.
    """
    with system_errors(path, "written"):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed: another process may continue the same state
            whole = _whole_lines(file.read())
            known = _releases(whole, path)
            file.seek(len(whole))
            file.truncate()
            file.write("".join(_line(one) for one in sorted(releases - known)).encode())
            file.flush()
            os.fsync(handle)
        flush_folder(path.parent)
    return known | releases


def _whole_lines(content: bytes) -> bytes:
    """`content` without a last line that has no end: the process was killed, and released nothing."""
    return content[: content.rfind(b"\n") + 1]


def _releases(content: bytes, path: Path) -> frozenset[Release]:
    found = set()
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(keepends=True), 1):
        match = _LINE.fullmatch(line[:-1])
        if match is None or line != _line((int(match[2]), match[3])):
            raise InputError(f"{path} is damaged in line {number}: what its private run has released is not known")
        found.add((int(match[2]), match[3]))
    return frozenset(found)


def _line(release: Release) -> str:
    text = f"{release[0]} {release[1]}"
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()[:16]}\n"
