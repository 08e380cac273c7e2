"""Checks a configuration: its size, then its keys and values. A problem is reported as one line that names the field.

The size is checked first, because pydantic collects all problems, and millions of problems cost time and memory.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..core.errors import FieldError, InputError, printable, shortened
from ..core.hyper import plain_numbers
from .schema import field_classes

Model = TypeVar("Model", bound=BaseModel)
MAX_DEPTH = 20  # tables and lists inside each other; recipes have 6
MAX_KEY = 200  # characters of a key
MAX_TEXT = 2**17  # characters of a text, the system's limit for one flag
MAX_ENTRIES = 10_000  # of a list or table; each wrong entry would be a separate problem
MAX_COHORTS = 2**20  # entries in `participation`: one for each round
MAX_INTEGER = 2**63  # integers of TOML have 64 bits
SHOWN = 40  # characters of a key or text in a message
LINE = 1500  # characters of a message


def check_bounds(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise InputError, naming the key, if `value` or a value inside is nested too deep, too large or of a wrong type.

    path: the keys from the outermost table to `value`.
    """
    problem = next(_problems_of_size(path, value), None)
    if problem:
        parts = [printable(part[:SHOWN]) for part in path]
        shown = parts if len(parts) <= MAX_DEPTH // 2 else [*parts[: MAX_DEPTH // 2], "..."]
        raise InputError(f"{'.'.join(shown)}: {problem}" if path else problem)
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        # 64-bit integers need no check one by one: a cohort may have a million.
        are_integers = all(type(entry) is int for entry in value)
        if not (are_integers and value and min(value) >= -MAX_INTEGER and max(value) < MAX_INTEGER):
            entries = enumerate(value)
    for key, entry in entries:
        check_bounds(entry, (*path, str(key)))


def _problems_of_size(path: tuple[str, ...], value: Any) -> Iterator[str]:
    """Yield what is wrong with the last key of `path` and with `value`; the entries of `value` are not checked."""
    if len(path) > MAX_DEPTH:
        yield f"nested deeper than {MAX_DEPTH} tables and lists"
    if path and len(path[-1]) > MAX_KEY:
        yield f"a key of more than {MAX_KEY} characters"
    most = MAX_COHORTS if not path or "participation" in path else MAX_ENTRIES
    if isinstance(value, dict | list) and len(value) > most:
        yield f"more than {most:,} entries"
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        yield "a whole number of more than 64 bits"
    if isinstance(value, date | time):
        yield "a date or time, which no setting is"
    if isinstance(value, str) and len(value) > MAX_TEXT:
        yield f"a text of more than {MAX_TEXT:,} characters"
    # Line feeds and tabs are allowed: notes of recipes have them.
    if isinstance(value, str) and any(unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t" for c in value):
        yield f"control characters in {printable(value[:SHOWN])!r}"


def short_repr(value: object) -> str:
    """Return the repr of a user's value for a message, shortened."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists nested thousands deep
        return f"a {type(value).__name__} that cannot be shown"


def validated(model: type[Model], table: dict[str, Any]) -> Model:
    """Build a `model` from `table`. Raises InputError with one line that names the field."""
    check_bounds(table)
    try:
        return model(**plain_numbers(table))
    except ValidationError as error:
        raise InputError(printable(shortened(_first_problem(error, model), LINE))) from error
    except RecursionError as error:
        raise InputError("the configuration is nested too deep") from error


def _first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return a line with the dotted key, the first problem of a configuration, and the number of further problems."""
    first, *more = error.errors(include_url=False)
    key, cause = ".".join(map(str, first["loc"])), first.get("ctx", {}).get("error")
    if isinstance(cause, FieldError):
        key, text = ".".join(filter(None, (key, cause.key))), cause.problem
    elif first["type"] == "extra_forbidden":
        text = f"unknown key{_suggestion(first['loc'], model)}"
    elif first["type"] == "value_error":
        text, owner = str(cause), (*first["loc"], "")[0]
        # A message may name its field itself, such as `client.epochs and client.steps exclude each other`.
        key = "" if text.startswith((f"{owner}.", f"{owner}:", f"{owner} =")) else key
    else:
        text = f"{first['msg']}, got {short_repr(first['input'])}"
    return ": ".join(filter(None, (key, text))) + (f" (and {len(more)} more)" if more else "")


def _suggestion(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Return a hint: the known key most similar to the unknown key at `location`, or else all keys of its table."""
    fields: Mapping[str, FieldInfo] = model.model_fields
    for part in location[:-1]:
        classes = field_classes(fields[str(part)]) if part in fields else []
        fields = classes[0].fields if classes else fields
    close = get_close_matches(str(location[-1]), fields, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(fields)}"
