"""Digests of files: SHA256SUMS of a folder, in the format of `sha256sum`, and JSON files with their own SHA-256."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..files import TEMPORARY, TEXT, parsed, read_json, read_text, system_errors, write_atomically, write_text

FILE = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")


@dataclass(frozen=True)
class Checksums:
    """The SHA-256 digests of the files of a folder that are written with `write`.

    After a crash between the writing of a file and of its digest, a new file has no digest, and a replaced file has
    two. If digests are `required`, a file without a digest is damaged; the digest of a new file is written before the
    file.
    """

    folder: Path
    required: bool = False

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write the file `name` as `write_atomically` does, and its digest."""
        known = self._read()

        def write_and_digest(temporary: Path) -> None:
            write(temporary)
            if self.required or name in known:
                self._write({**known, name: {*known.get(name, ()), digest_of(temporary)}})

        write_atomically(self.folder / name, write_and_digest)
        self._write({**known, name: {digest_of(self.folder / name)}})

    def remove(self, name: str) -> None:
        """Remove the digest of `name`, for a file that is later changed without `write`."""
        known = self._read()
        if known.pop(name, None):
            self._write(known)

    def problem(self, name: str) -> str | None:
        """Describe the damage of the file `name`; None if it is intact, or has no digest and needs none."""
        expected = self._read().get(name, set())
        if not expected and not self.required:
            return None
        if not (self.folder / name).is_file():
            return None if self._is_under_way(name, expected) else "it is missing"
        if not expected:
            return f"{FILE} does not have its SHA-256"
        return None if digest_of(self.folder / name) in expected else "its SHA-256 is another one"

    def _is_under_way(self, name: str, expected: set[str]) -> bool:
        """Tell whether a process was killed while it wrote or replaced the file `name`."""
        left = [path for path in self.folder.glob(".tmp-*") if TEMPORARY.fullmatch(path.name)]
        return any(digest_of(path) in expected for path in (*left, *self.folder.glob(f"{name}.*")) if path.is_file())

    def check(self, name: str) -> Path:
        """Return the path of the file `name`. Raises InputError, naming it, unless the file is intact."""
        path, problem = self.folder / name, self.problem(name)
        if problem:
            raise InputError(f"{path} is missing or damaged: {problem}; `fedflat verify {self.folder}` says more")
        return path

    def knows(self, name: str) -> bool:
        """Tell whether the file `name` exists or has a digest."""
        with suppress(InputError):
            return (self.folder / name).exists() or name in self.names
        return False

    @property
    def names(self) -> list[str]:
        """The files that have a digest."""
        return sorted(self._read())

    def _read(self) -> dict[str, set[str]]:
        """Read the digests by name; empty without a SHA256SUMS. Raises InputError if it is damaged."""
        path, found = self.folder / FILE, dict[str, set[str]]()
        for line in read_text(path).splitlines() if path.exists() else ():
            match = _LINE.fullmatch(line)
            if match is None:
                raise InputError(f"{path} is damaged: {line[:80]!r} is no line of it")
            found.setdefault(match[2], set()).add(match[1])
        return found

    def _write(self, known: dict[str, set[str]]) -> None:
        lines = [f"{digest}  {name}\n" for name in sorted(known) for digest in sorted(known[name])]
        write_text(self.folder / FILE, "".join(lines))


def check_listed(path: Path) -> None:
    """Raise InputError if the file `path` does not match its digest in the SHA256SUMS of its folder.

    A SHA256SUMS that another program wrote is ignored.
    """
    checksums, problem = Checksums(path.parent), None
    with suppress(InputError):
        problem = checksums.problem(path.name)
    if problem:
        raise InputError(
            f"{path} is not what was written: {problem}; to change its settings, copy it to another folder"
        )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits. Raises InputError if it cannot be read."""
    with system_errors(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CONTENT, SHA256 = "content", "sha256"


def write_checked(path: Path, content: Any, private: bool = False) -> None:
    """Write the JSON-able `content` atomically, or raise InputError; only the owner can read a `private` file."""
    text = json.dumps({CONTENT: content, SHA256: _digest(content)}, indent=2) + "\n"
    write_text(path, text, private)


def read_checked(path: Path, most: int = TEXT) -> Any:
    """Read the content of a `write_checked` file of at most `most` bytes. Raises InputError if the file is damaged."""
    found = read_json(path, most)
    is_checked = isinstance(found, dict) and found.keys() == {CONTENT, SHA256}
    if not is_checked or found[SHA256] != parsed(path, lambda: _digest(found[CONTENT])):
        raise InputError(f"{path} is damaged: it does not have the SHA-256 of its content")
    return found[CONTENT]


def _digest(content: Any) -> str:
    """Return the SHA-256 of a JSON-able value; the order of keys and line breaks do not matter."""
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()
