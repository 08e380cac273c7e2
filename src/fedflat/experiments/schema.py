"""Configuration schemas, made from the classes that they configure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Set
from difflib import get_close_matches
from functools import cache
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Union, get_type_hints

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
    has_keys_of_its_name: ClassVar[bool] = False  # whether the other keys depend on `name`

    @model_validator(mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, table: Any) -> Any:
        """Refuse `rounds = true`, which pydantic would read as 1."""
        for name, value in table.items() if isinstance(table, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and field.annotation in NUMBERS:
                raise ValueError(f"{name} must be a number, got {str(value).lower()}")
        return table

    @model_validator(mode="before")
    @classmethod
    def _none_is_a_word(cls, table: Any) -> Any:
        """Read `beta = "none"`, which files have where nothing at all would be the default."""
        if not isinstance(table, dict) or not any(
            isinstance(value, str) and value == "none" for value in table.values()
        ):
            return table
        numbers = {name for name, field in cls.model_fields.items() if field.annotation in NUMBERS[2:]}
        return {name: None if value == "none" and name in numbers else value for name, value in table.items()}

    def values(self) -> dict[str, Any]:
        """The keys and values of the section itself; sections inside it stay sections."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def table(self) -> dict[str, Any]:
        """The section as a file has it: without keys that have no value, or with "none" if that is not the default."""
        found = self.model_dump(exclude_none=True)
        for name, info in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                found[name] = value.table()
            elif isinstance(value, list):
                found[name] = [
                    x.table() if isinstance(x, Section) else y for x, y in zip(value, found[name], strict=True)
                ]
            elif value is None and info.default is not None and not info.default_factory:
                found[name] = "none"
        return found


class NamedSection(Section):
    """A section whose `name` chooses a class; the other keys are the fields of that class."""

    has_keys_of_its_name = True
    name: str

    def names(self) -> list[str]:
        """The name, and after it those of the sections inside this one, such as a method that another one is around."""
        inside = [value for value in self.values().values() if isinstance(value, NamedSection)]
        return [self.name, *(name for one in inside for name in one.names())]

    @property
    def full_name(self) -> str:
        """All names in one: it tells one section inside another from the same one inside a third."""
        return "-".join(self.names())

    @property
    def label(self) -> str:
        """The full name, without the module or file of a class that is outside this package: `SWA-FedSAM`."""
        return "-".join(map(short_name, self.names()))

    def arguments(self) -> dict[str, Any]:
        """The keys and values other than the name."""
        return {key: value for key, value in self.values().items() if key != "name"}


class UnloadedSection(NamedSection):
    """A section that names code which may not be run here; its other keys are kept as they are."""

    model_config = ConfigDict(extra="allow")

    def names(self) -> list[str]:
        inside = [value for value in self.values().values() if isinstance(value, Mapping)]
        return [self.name, *(str(one["name"]) for one in inside if "name" in one)]

    def values(self) -> dict[str, Any]:
        return {"name": self.name} | (self.model_extra or {})


@dataclasses.dataclass(frozen=True, eq=False)
class NestedClass:
    """What a field of some classes may be besides a number or text: an object of a class that has a section, too."""

    kind: type[Any]
    section: Any  # the type of its section


@dataclasses.dataclass(frozen=True)
class DefaultName:
    """Of a field whose `name` chooses a section: the name that a table without one has."""

    name: str


def section_of(cls: type[Any]) -> type[Section]:
    """A section with the fields of a dataclass: the same names, types, defaults, ranges and meanings."""
    return create_model(cls.__name__, __base__=Section, **_definitions(cls))


def section_named(name: str, cls: type[Any]) -> type[NamedSection]:
    """The section of the only class that a key may have, called `name`; lists are accepted for tuples."""
    return _named_section(name, cls, None)


def choice_of(
    classes: Mapping[str, type[Any]],
    plain: Callable[[str], str],
    default: str,
    point: ExtensionPoint,
    common: type[Any] | None = None,
) -> Any:
    """The type of a section with a `name` that chooses one of `classes`; only the keys of that class are accepted.

    Names are compared as `plain(name)`. The name alone is accepted in place of a table, and a table without a name is
    the `default`. The name of a class outside this package is accepted too: see `outside_section`. common: what these
    classes have in common; a field of that type is a section of the same kind, of a class without such a field.
    """
    whole = {name: cls for name, cls in classes.items() if common not in get_type_hints(cls).values()}
    sections = {name: _named_section(name, cls, None) for name, cls in whole.items()}
    inside = _choice(sections, set(classes) - set(whole), plain, default, point, None)
    held = NestedClass(common, inside) if common else None
    sections |= {name: _named_section(name, cls, held) for name, cls in classes.items() if name not in whole}
    return inside if len(whole) == len(classes) else _choice(sections, set(), plain, default, point, held)


def _named_section(name: str, cls: type[Any], nested: NestedClass | None) -> type[NamedSection]:
    fields: dict[str, Any] = {"name": (Literal[name], name)} | _definitions(cls, nested)
    return create_model(name, __base__=NamedSection, **fields)


def _choice(
    sections: Mapping[str, type[NamedSection]],
    refused: Set[str],
    plain: Callable[[str], str],
    default: str,
    point: ExtensionPoint,
    nested: NestedClass | None,
) -> Any:
    """The type of a section that is one of `sections`; the `refused` are known, and cannot be inside one another."""
    known = {plain(name): name for name in (*sections, *refused)}

    def validated_section(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            return value if isinstance(value, NamedSection) and is_outside(value.name, point) else handler(value)
        name = table.get("name", default)
        if not isinstance(name, str):
            return handler(table)
        table = {**table, "name": known.get(plain(name), name)}
        if table["name"] in refused:
            raise InputError(f"{table['name']} goes around another one itself, and cannot be inside one")
        outside = table["name"] not in sections and is_outside(table["name"], point)
        return outside_section(table, point, nested) if outside else handler(table)

    options = tuple(sections.values())
    union: Any = options[0] if len(options) == 1 else Annotated[Union[options], Field(discriminator="name")]  # noqa: UP007
    return Annotated[union, SerializeAsAny(), DefaultName(default), WrapValidator(validated_section)]  # type: ignore[type-arg]


def outside_section(table: Mapping[str, Any], point: ExtensionPoint, nested: NestedClass | None = None) -> NamedSection:
    """The section of a class outside this package, by object reference or entry point; its keys are the class's fields.

    If code may not be run here, a section whose keys are not checked. Raises InputError for a key that the class does
    not have, and as `load_object` does.
    """
    name = str(table["name"])
    if is_reference(name) and not is_code_allowed():
        return UnloadedSection(**table)
    name = resolved(name) if is_reference(name) else name
    section = _section_of_outside(name, find_outside(name, point), nested)
    for key in table:
        if key not in section.model_fields:
            fields = [field for field in section.model_fields if field != "name"]
            close = get_close_matches(key, fields, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(fields) or 'none'}"
            raise InputError(f"{short_name(name)} has no field {key!r}; {hint}")
    return section(**{**table, "name": name})


@cache
def _section_of_outside(name: str, cls: type[Any], nested: NestedClass | None) -> type[NamedSection]:
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{name}: {cls.__name__} has no fields; its settings are fields of a dataclass")
    return create_model(cls.__name__, __base__=NamedSection, name=(str, name), **_definitions(cls, nested))


def sections_of(kind: Any) -> list[type[Section]]:
    """The sections that a field annotated `kind` may hold: itself, or the members of a union or list."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [member for argument in getattr(kind, "__args__", ()) for member in sections_of(argument)]


def _definitions(cls: type[Any], nested: NestedClass | None = None) -> dict[str, Any]:
    """The type and the pydantic field of every field of a dataclass, by name; a `nested` one is a section."""
    hints, found = get_type_hints(cls), dict[str, Any]()
    for field in dataclasses.fields(cls):
        if nested is not None and hints[field.name] is nested.kind:
            table = {"name": type(field.default).__name__, **vars(field.default)}
            meaning = field.metadata.get("meaning")
            found[field.name] = nested.section, Field(default=table, validate_default=True, description=meaning)
            continue
        interval = field.metadata.get("interval", Interval())  # the range that `hyper` declared
        bounds: dict[str, Any] = {}
        if interval.low > -inf:
            bounds["gt" if interval.open_low else "ge"] = interval.low
        if interval.high < inf:
            bounds["le"] = interval.high
        default = ... if field.default is dataclasses.MISSING else field.default
        info = Field(default=default, description=field.metadata.get("meaning"), **bounds)
        found[field.name] = (hints[field.name], info)
    return found
