"""JSON files that have the SHA-256 of their content in them, for small files that decide and change by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..files import TEXT, parsed, read_json, write_atomically
from .settings import digest

CONTENT, SHA256 = "content", "sha256"


def write_checked(path: Path, content: Any, private: bool = False) -> None:
    """Write the JSON-able `content` atomically; a `private` file can be read by its owner alone. Raises InputError."""
    text = json.dumps({CONTENT: content, SHA256: _digest(content)}, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text), private)


def read_checked(path: Path, most: int = TEXT) -> Any:
    """What `write_checked` wrote, of at most `most` bytes. Raises InputError, naming the file, if it is damaged."""
    found = read_json(path, most)
    whole = isinstance(found, dict) and found.keys() == {CONTENT, SHA256}
    if not whole or found[SHA256] != parsed(path, lambda: _digest(found[CONTENT])):
        raise InputError(f"{path} is damaged: it does not have the SHA-256 of its content")
    return found[CONTENT]


def _digest(content: Any) -> str:
    """The SHA-256 of a JSON-able value, however a file has its keys ordered and its lines broken."""
    return digest(json.loads(json.dumps(content)))
