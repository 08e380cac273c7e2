"""Configuration schemas, made from the classes that they configure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from math import inf
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from ..core.hyper import Interval

NUMBERS = (int, float, int | None, float | None)


class Section(BaseModel):
    """A part of a configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, table: Any) -> Any:
        """Refuse `rounds = true`, which pydantic would read as 1."""
        for name, value in table.items() if isinstance(table, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation in NUMBERS:
                raise ValueError(f"{name} must be a number, got {str(value).lower()}")
        return table

    def values(self) -> dict[str, Any]:
        """The keys and values of the section itself; sections inside it stay sections."""
        return {name: getattr(self, name) for name in type(self).model_fields}


class NamedSection(Section):
    """A section whose `name` chooses a class; the other keys are the fields of that class."""

    name: str

    def arguments(self) -> dict[str, Any]:
        """The keys and values other than the name."""
        return {key: value for key, value in self.values().items() if key != "name"}


def section_of(cls: type[Any]) -> type[Section]:
    """A section with the fields of a dataclass: the same names, types, defaults, ranges and meanings."""
    return create_model(cls.__name__, __base__=Section, **_definitions(cls))


def choice_of(classes: Mapping[str, type[Any]], plain: Callable[[str], str], default: str) -> Any:
    """The type of a section with a `name` that chooses one of `classes`; only the keys of that class are accepted.

    Names are compared as `plain(name)`. The name alone is accepted in place of a table, and a table without a name is
    the `default`.
    """
    known = {plain(name): name for name in classes}
    named = {name: {"name": (Literal[name], name)} | _definitions(cls) for name, cls in classes.items()}
    options = tuple(create_model(name, __base__=NamedSection, **fields) for name, fields in named.items())

    def with_known_name(value: Any) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            return value
        name = table.get("name", default)
        return {**table, "name": known.get(plain(name), name) if isinstance(name, str) else name}

    union = options[0] if len(options) == 1 else Annotated[Union[options], Field(discriminator="name")]  # noqa: UP007
    return Annotated[union, BeforeValidator(with_known_name)]


def sections_of(kind: Any) -> list[type[Section]]:
    """The sections that a field annotated `kind` may hold: itself, or the members of a union or list."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [member for argument in getattr(kind, "__args__", ()) for member in sections_of(argument)]


def _definitions(cls: type[Any]) -> dict[str, Any]:
    """The type and the pydantic field of every field of a dataclass, by name."""
    hints, found = get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        interval = field.metadata.get("interval", Interval())  # the range that `hyper` declared
        bounds: dict[str, Any] = {}
        if interval.low > -inf:
            bounds["gt" if interval.open_low else "ge"] = interval.low
        if interval.high < inf:
            bounds["le"] = interval.high
        info = Field(default=field.default, description=field.metadata.get("meaning"), **bounds)
        found[field.name] = (hints[field.name], info)
    return found
