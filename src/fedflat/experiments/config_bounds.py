"""Bounds on the size of a configuration: what is larger is refused before it costs time or memory."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from ..core.errors import InputError, printable

MAX_DEPTH = 20  # tables and lists inside each other; recipes have 6
MAX_KEY = 200  # characters of a key
MAX_TEXT = 2**17  # characters of a text: as many as the system takes for one flag
MAX_ENTRIES = 10_000  # of a list or table; each wrong entry would be a problem of its own
MAX_COHORTS = 2**20  # entries in `participation`: one for each round
MAX_INTEGER = 2**63  # whole numbers of TOML have 64 bits
SHOWN = 40  # characters of a key or text in a message

KeyPath = tuple[str, ...]  # the keys, from the outermost table to a value


def check_bounds(value: Any) -> None:
    """Raise InputError, naming the key inside `value`, for a value that is too deep, too large or of no known type."""
    waiting: list[tuple[KeyPath, Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        problem = _problem(path, value)
        if problem:
            raise InputError(f"{_dotted(path)}: {problem}" if path else problem)
        entries: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            entries = value.items()
        elif isinstance(value, list) and not _has_only_short_integers(value):
            entries = enumerate(value)
        waiting += (((*path, str(key)), entry) for key, entry in entries)


def _has_only_short_integers(values: list[Any]) -> bool:
    """True for a list of 64-bit whole numbers, whose entries need no check one by one: a cohort may have a million."""
    are_integers = all(type(value) is int for value in values)
    return are_integers and bool(values) and min(values) >= -MAX_INTEGER and max(values) < MAX_INTEGER


def _problem(path: KeyPath, value: Any) -> str | None:
    """What is wrong with `value`, apart from its entries."""
    if len(path) > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH} tables and lists"
    if path and len(path[-1]) > MAX_KEY:
        return f"a key of more than {MAX_KEY} characters"
    most = MAX_COHORTS if not path or "participation" in path else MAX_ENTRIES
    if isinstance(value, dict | list) and len(value) > most:
        return f"more than {most:,} entries"
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        return "a whole number of more than 64 bits"
    if isinstance(value, date | time):
        return "a date or time, which no setting is"
    return _problem_of_text(value) if isinstance(value, str) else None


def _problem_of_text(text: str) -> str | None:
    if len(text) > MAX_TEXT:
        return f"a text of more than {MAX_TEXT:,} characters"
    # Line feeds and tabs are allowed: notes of recipes have them.
    if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in text):
        return f"control characters in {printable(text[:SHOWN])!r}"
    return None


def _dotted(path: KeyPath) -> str:
    """The dotted key of a value; of a very deep one its first parts."""
    parts = [printable(part[:SHOWN]) for part in path]
    return ".".join(parts if len(parts) <= MAX_DEPTH // 2 else [*parts[: MAX_DEPTH // 2], "..."])
