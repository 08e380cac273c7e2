"""A user's mistake in one line that names the field."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..core.errors import InputError, printable, shortened
from .config_bounds import check_bounds
from .schema import Section, sections_of

Checked = TypeVar("Checked", bound=BaseModel)


LINE = 1500  # characters of a message


def shown(value: Any) -> str:
    """A user's value in a message, shortened."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists in lists
        return f"some {type(value).__name__}"


def validated(model: type[Checked], table: dict[str, Any]) -> Checked:
    """`table` as a `model`. Raises InputError, one line that names the field."""
    check_bounds(table)
    try:
        return model(**table)
    except ValidationError as error:
        raise InputError(printable(shortened(in_one_line(error, model), LINE))) from error
    except RecursionError as error:
        raise InputError("the configuration is nested too deep") from error


def in_one_line(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of a configuration, and how many more there are."""
    first, *more = error.errors(include_url=False)
    place, options = _place(first["loc"], model)
    line = f"{place}: {_problem(first, options)}" if place else _problem(first, options)
    return line + (f" (and {len(more)} more)" if more else "")


def _problem(problem: Any, options: list[str]) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown key{_suggestion(str(problem['loc'][-1]), options)}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        expected = problem["ctx"].get("expected_tags", "").replace("'", "")
        given = problem["ctx"].get("tag")
        return f"unknown name {shown(given)}; known are {expected}" if given else "needs a name"
    message = problem["msg"].removeprefix("Value error, ")
    return message if problem["type"] == "value_error" else f"{message}, got {shown(problem['input'])}"


def _suggestion(key: str, options: list[str]) -> str:
    close = get_close_matches(key, options, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(options)}"


def _place(location: tuple[int | str, ...], model: Any) -> tuple[str, list[str]]:
    """The dotted key, without pydantic's tags of union members, and the keys known beside it."""
    parts: list[str] = []
    for part in location:
        tagged = parts and isinstance(part, str) and _is_member(model, parts, part)
        if not tagged:
            parts.append(str(part))
    return ".".join(parts), _siblings(model, location)


def _is_member(model: Any, parts: list[str], part: str) -> bool:
    """True if `part` is the tag of a union member: a class name where a key would stand."""
    return any(option.__name__ == part for option in _members(model, parts[0]))


def _members(model: Any, key: str) -> list[type[Section]]:
    """The sections that the field `key` may be."""
    info = model.model_fields.get(key)
    return sections_of(info.annotation) if info else []


def _siblings(model: Any, location: tuple[int | str, ...]) -> list[str]:
    if len(location) <= 1:
        return list(model.model_fields)
    members = _members(model, str(location[0]))
    named = [m for m in members if m.__name__ in location] or members
    return sorted({name for m in named for name in m.model_fields})
