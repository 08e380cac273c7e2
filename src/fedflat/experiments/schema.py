"""Configuration schemas, read off the classes that they configure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from ..core.hyper import Interval


class Section(BaseModel):
    """A part of a configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, table: Any) -> Any:
        """Refuse `rounds = true`, which would otherwise count as 1."""
        for name, value in table.items() if isinstance(table, dict) else ():
            field = cls.model_fields.get(name)
            if (
                isinstance(value, bool)
                and field is not None
                and field.annotation in (int, float, int | None, float | None)
            ):
                raise ValueError(f"{name} must be a number, got {str(value).lower()}")
        return table

    def values(self) -> dict[str, Any]:
        """The keys and values of the section itself."""
        return {name: getattr(self, name) for name in type(self).model_fields}


def section(cls: type[Any]) -> type[Section]:
    """A section with the fields of a dataclass: the same names, types, defaults, ranges and meanings."""
    return create_model(cls.__name__, __base__=Section, **_definitions(cls))


def choice(classes: Mapping[str, type[Any]], plain: Callable[[str], str], default: str) -> Any:
    """The type of a section with a `name` that chooses one of `classes`; only that one's keys are accepted.

    Names are compared as `plain(name)`; the name alone, without a table, is accepted too, and a table
    without a name is the `default`.
    """
    known = {plain(name): name for name in classes}
    options = tuple(
        create_model(name, __base__=Section, name=(Literal[name], name), **_definitions(cls))
        for name, cls in classes.items()
    )

    def normal(value: Any) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            return value
        name = table.get("name", default)
        return {**table, "name": known.get(plain(name), name) if isinstance(name, str) else name}

    union = options[0] if len(options) == 1 else Annotated[Union[options], Field(discriminator="name")]  # noqa: UP007
    return Annotated[union, BeforeValidator(normal)]


def sections_of(kind: Any) -> list[type[Section]]:
    """The sections that a field annotated `kind` may hold: itself, or the members of a union or list."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [member for argument in getattr(kind, "__args__", ()) for member in sections_of(argument)]


def _definitions(cls: type[Any]) -> Any:
    hints = get_type_hints(cls)
    return {f.name: (hints[f.name], _field(f)) for f in fields(cls)}


def _field(f: Any) -> FieldInfo:
    interval = f.metadata.get("interval", Interval())
    bounds: dict[str, Any] = {}
    if interval.low > -inf:
        bounds["gt" if interval.open_low else "ge"] = interval.low
    if interval.high < inf:
        bounds["le"] = interval.high
    info: FieldInfo = Field(default=f.default, description=f.metadata.get("meaning"), **bounds)
    return info
