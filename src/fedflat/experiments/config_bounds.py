"""How large the parts of a configuration may be: what is larger is refused before it costs anything."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from datetime import date, time
from typing import Any

from ..core.errors import InputError, printable

DEPTH = 20  # of tables and lists in each other; recipes have 6
KEY = 200  # characters of a key
TEXT = 2**17  # characters of a text: as much as the system takes for one flag
ENTRIES = 10_000  # of a list; every wrong one would be a complaint of its own
COHORTS = 2**20  # of `participation`: as many as rounds can be
WHOLE = 2**63  # the whole numbers of TOML have 64 bits
FEW = 40  # characters of a key in a message


def check_bounds(value: Any) -> None:
    """Raise InputError, naming the key inside `value`, for what is too deep or too large, or no value of any field."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        place, value = waiting.pop()
        problem = _problem(place, value)
        if problem:
            raise InputError(f"{_dotted(place)}: {problem}" if place else problem)
        waiting += (((*place, str(key)), inner) for key, inner in _inside(value))


def _inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a table or list holds, by key or number."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list) and not _are_short_numbers(value):
        yield from enumerate(value)


def _are_short_numbers(values: list[Any]) -> bool:
    """True for a list of whole numbers that all have 64 bits: nothing in it need be looked at one by one."""
    whole = all(type(value) is int for value in values)
    return whole and bool(values) and min(values) >= -WHOLE and max(values) < WHOLE


def _problem(place: tuple[str, ...], value: Any) -> str | None:
    """What is wrong with `value` by itself."""
    if len(place) > DEPTH:
        return f"nested deeper than {DEPTH} tables and lists"
    if place and len(place[-1]) > KEY:
        return f"a key of more than {KEY} characters"
    most = COHORTS if not place or "participation" in place else ENTRIES
    if isinstance(value, dict | list) and len(value) > most:
        return f"more than {most:,} entries"
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        return "a whole number of more than 64 bits"
    if isinstance(value, date | time):
        return "a date or time, which no setting is"
    return _problem_of_text(value) if isinstance(value, str) else None


def _problem_of_text(text: str) -> str | None:
    if len(text) > TEXT:
        return f"a text of more than {TEXT:,} characters"
    # A line feed or tab may stand in a recipe's notes.
    if any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in text):
        return f"control characters in {printable(text[:FEW])!r}"
    return None


def _dotted(place: tuple[str, ...]) -> str:
    """The key, the first parts of it if there are many."""
    parts = [printable(part[:FEW]) for part in place]
    return ".".join(parts if len(parts) <= DEPTH // 2 else [*parts[: DEPTH // 2], "..."])
