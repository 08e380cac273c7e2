"""Configuration schemas, made from the classes that they configure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from math import inf
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)

from ..core.errors import InputError
from ..core.hyper import Interval
from ..core.object_references import (
    ExtensionPoint,
    find_outside,
    is_code_allowed,
    is_outside,
    is_reference,
    resolved,
    short_name,
)

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

    @property
    def label(self) -> str:
        """The name of the class, without the module or file of one that is outside this package."""
        return short_name(self.name)

    def arguments(self) -> dict[str, Any]:
        """The keys and values other than the name."""
        return {key: value for key, value in self.values().items() if key != "name"}


class UnloadedSection(NamedSection):
    """A section that names code which may not be run here; its other keys are kept as they are."""

    model_config = ConfigDict(extra="allow")

    def values(self) -> dict[str, Any]:
        return {"name": self.name} | (self.model_extra or {})


def section_of(cls: type[Any]) -> type[Section]:
    """A section with the fields of a dataclass: the same names, types, defaults, ranges and meanings."""
    return create_model(cls.__name__, __base__=Section, **_definitions(cls))


def choice_of(
    classes: Mapping[str, type[Any]], plain: Callable[[str], str], default: str, point: ExtensionPoint
) -> Any:
    """The type of a section with a `name` that chooses one of `classes`; only the keys of that class are accepted.

    Names are compared as `plain(name)`. The name alone is accepted in place of a table, and a table without a name is
    the `default`. The name of a class outside this package is accepted too: see `outside_section`.
    """
    known = {plain(name): name for name in classes}
    named = {name: {"name": (Literal[name], name)} | _definitions(cls) for name, cls in classes.items()}
    options = tuple(create_model(name, __base__=NamedSection, **fields) for name, fields in named.items())

    def validated_section(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            return value if isinstance(value, NamedSection) and is_outside(value.name, point) else handler(value)
        name = table.get("name", default)
        if not isinstance(name, str):
            return handler(table)
        table = {**table, "name": known.get(plain(name), name)}
        outside = table["name"] not in classes and is_outside(table["name"], point)
        return outside_section(table, point) if outside else handler(table)

    union: Any = options[0] if len(options) == 1 else Annotated[Union[options], Field(discriminator="name")]  # noqa: UP007
    return Annotated[union, SerializeAsAny(), WrapValidator(validated_section)]  # type: ignore[type-arg]


def outside_section(table: Mapping[str, Any], point: ExtensionPoint) -> NamedSection:
    """The section of a class outside this package, by object reference or entry point; its keys are the class's fields.

    If code may not be run here, a section whose keys are not checked. Raises InputError for a key that the class does
    not have, and as `load_object` does.
    """
    name = str(table["name"])
    if is_reference(name) and not is_code_allowed():
        return UnloadedSection(**table)
    name = resolved(name) if is_reference(name) else name
    section = _section_of_outside(name, find_outside(name, point))
    for key in table:
        if key not in section.model_fields:
            fields = [field for field in section.model_fields if field != "name"]
            close = get_close_matches(key, fields, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(fields) or 'none'}"
            raise InputError(f"{short_name(name)} has no field {key!r}; {hint}")
    return section(**{**table, "name": name})


@cache
def _section_of_outside(name: str, cls: type[Any]) -> type[NamedSection]:
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{name}: {cls.__name__} has no fields; its settings are fields of a dataclass")
    return create_model(cls.__name__, __base__=NamedSection, name=(str, name), **_definitions(cls))


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
