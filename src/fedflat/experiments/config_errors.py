"""Problems of a configuration in one line that names the field."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..core.errors import InputError, printable, shortened
from .config_bounds import check_bounds
from .schema import Section, sections_of

Model = TypeVar("Model", bound=BaseModel)


LINE = 1500  # characters of a message


def short_repr(value: object) -> str:
    """The repr of a user's value for a message, shortened."""
    try:
        return shortened(repr(value))
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists nested thousands deep
        return f"a {type(value).__name__} that cannot be shown"


def validated(model: type[Model], table: dict[str, Any]) -> Model:
    """`table` as a `model`. Raises InputError, one line that names the field."""
    check_bounds(table)
    try:
        return model(**table)
    except ValidationError as error:
        raise InputError(printable(shortened(_first_problem(error, model), LINE))) from error
    except RecursionError as error:
        raise InputError("the configuration is nested too deep") from error


def _first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """The first problem of a configuration, after its dotted key, and how many more there are."""
    first, *more = error.errors(include_url=False)
    members = _members(model, first["loc"])
    # A class name in the place of a key is pydantic's tag of a union member; no user has written it.
    tags = {member.__name__ for member in members}
    parts = [str(part) for place, part in enumerate(first["loc"]) if not (place and part in tags)]
    line = ": ".join(filter(None, (".".join(parts), _description(first, model, members))))
    return line + (f" (and {len(more)} more)" if more else "")


def _members(model: type[BaseModel], location: tuple[int | str, ...]) -> list[type[Section]]:
    """The sections that the field at the beginning of `location` may hold."""
    info = model.model_fields.get(str(location[0])) if location else None
    return sections_of(info.annotation) if info else []


def _description(problem: ErrorDetails, model: type[BaseModel], members: list[type[Section]]) -> str:
    """A problem in words, without the key."""
    if problem["type"] == "extra_forbidden":
        return f"unknown key{_suggestion(problem['loc'], model, members)}"
    if problem["type"] in ("union_tag_invalid", "union_tag_not_found"):
        expected = problem["ctx"].get("expected_tags", "").replace("'", "")
        given = problem["ctx"].get("tag")
        return f"unknown name {short_repr(given)}; known are {expected}" if given else "needs a name"
    message = problem["msg"].removeprefix("Value error, ")
    return message if problem["type"] == "value_error" else f"{message}, got {short_repr(problem['input'])}"


def _suggestion(location: tuple[int | str, ...], model: type[BaseModel], members: list[type[Section]]) -> str:
    """The known key most like the unknown one at `location`, or all known keys of its table."""
    known = list(model.model_fields)
    if len(location) > 1:
        chosen = [member for member in members if member.__name__ in location] or members
        known = sorted({name for member in chosen for name in member.model_fields})
    close = get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
