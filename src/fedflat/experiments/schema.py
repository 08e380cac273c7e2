"""Configuration schemas, read off the classes that they configure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from ..core.hyper import Interval


class Section(BaseModel):
    """A part of a configuration; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)

    def values(self) -> dict[str, Any]:
        """The keys and values of the section itself."""
        return {name: getattr(self, name) for name in type(self).model_fields}


def section(cls: type[Any]) -> type[Section]:
    """A section with the fields of a dataclass: the same names, types, defaults, ranges and meanings."""
    return create_model(cls.__name__, __base__=Section, **_definitions(cls))


def choice(classes: Mapping[str, type[Any]], plain: Callable[[str], str]) -> Any:
    """The type of a section with a `name` that chooses one of `classes`; only that one's keys are accepted.

    Names are compared as `plain(name)`; the name alone, without a table, is accepted too.
    """
    known = {plain(name): name for name in classes}
    options = tuple(
        create_model(name, __base__=Section, name=(Literal[name], name), **_definitions(cls))
        for name, cls in classes.items()
    )

    def normal(value: Any) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        if isinstance(table, Mapping) and isinstance(table.get("name"), str):
            return {**table, "name": known.get(plain(table["name"]), table["name"])}
        return table

    union = options[0] if len(options) == 1 else Annotated[Union[options], Field(discriminator="name")]  # noqa: UP007
    return Annotated[union, BeforeValidator(normal)]


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
