"""The parts of a configuration: sections, and objects that are built from tables.

The class of an object checks its values. This module adds what a file or a flag needs: names of classes, types of
numbers, and messages that begin with the key.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined, core_schema

from ..core.errors import FieldError, InputError, shortened
from ..core.hyper import field_types
from ..core.object_references import (
    ExtensionPoint,
    check_allowed,
    find_outside,
    is_code_allowed,
    is_outside,
    is_reference,
    resolved,
    short_name,
)
from ..core.registry import matching, suggestion

Table = Mapping[str, Any]
OPTIONAL_NUMBERS = (int | None, float | None)
NUMBERS = (int, float, *OPTIONAL_NUMBERS)


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
        """Read `share = "none"` as no value, because in a file a missing key means the default."""
        if not isinstance(table, dict):
            return table
        optional = {name for name, field in cls.model_fields.items() if field.annotation in OPTIONAL_NUMBERS}
        return {name: None if _is_none(value) and name in optional else value for name, value in table.items()}

    def values(self) -> dict[str, Any]:
        """Return keys and values; sections and objects inside are not converted."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    def table(self) -> dict[str, Any]:
        """Return the section as a table for a TOML file."""
        table: dict[str, Any] = file_table(self)
        return table


@dataclasses.dataclass(frozen=True)
class NamedObject:
    """An object whose class is chosen by a name. The values of its fields are attributes, too: `spec.method.rho`."""

    name: str
    fields: Table  # a value whose class is chosen by a name is a NamedObject, too
    choice: ObjectByName = dataclasses.field(repr=False, compare=False)
    made: Any = None  # the object; None if it needs code that was not allowed to run

    def __getattr__(self, key: str) -> Any:
        """Return the value of a field."""
        if key.startswith("__") or key not in (fields := vars(self).get("fields", {})):
            raise AttributeError(f"{vars(self).get('name')} has no field {key!r}")
        return fields[key]

    @property
    def is_loaded(self) -> bool:
        """Whether the object was built; if not, it needs code that was not allowed to run."""
        return self.made is not None

    @property
    def object(self) -> Any:
        """The object. Raises InputError if it needs code that may not be run here."""
        if self.is_loaded:
            return self.made
        for name in self.names():
            check_allowed(name)
        return self.choice.build(self.values()).object

    def values(self) -> dict[str, Any]:
        """Return the name, and keys and values of the fields."""
        return {"name": self.name, **self.fields}

    def names(self) -> list[str]:
        """Return the name, then the names of objects inside, such as the method inside a wrapper."""
        inside: list[str] = []
        for value in self.fields.values():
            if isinstance(value, NamedObject):
                inside += value.names()
            elif isinstance(value, Mapping) and "name" in value:
                inside.append(str(value["name"]))
        return [self.name, *inside]

    @property
    def full_name(self) -> str:
        """All names, joined by hyphens; it distinguishes the same method inside different wrappers."""
        return "-".join(self.names())

    @property
    def label(self) -> str:
        """The full name, without the modules or files of classes outside this package: `SWA-FedSAM`."""
        return "-".join(map(short_name, self.names()))


@dataclasses.dataclass(frozen=True)
class FieldClass:
    """A section, or a class, that a field of a configuration may hold."""

    name: str
    fields: Mapping[str, FieldInfo]
    default_name: str | None = None  # the name that a table without `name` means; None if no key depends on the name


class _ObjectField(ABC):
    """The annotation of a field that holds objects; pydantic calls `build`."""

    @abstractmethod
    def build(self, value: Any) -> Any:
        """Build the object from a field's value. Raises InputError, or FieldError if a key in the value is wrong."""

    @property
    @abstractmethod
    def field_classes(self) -> list[FieldClass]:
        """The possible classes of the object."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        dumped = core_schema.plain_serializer_function_ser_schema(table_of)
        return core_schema.no_info_plain_validator_function(self.build, serialization=dumped)


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectOf(_ObjectField):
    """A field that holds an object of one dataclass, built from a table with the fields of that class."""

    cls: Any  # the dataclass

    def build(self, value: Any) -> Any:
        """Build the object from a field's value. Raises InputError, or FieldError if a key in the value is wrong."""
        if isinstance(value, self.cls):
            return value
        if not isinstance(value, Mapping):
            raise InputError(f"must be a table, got {_shown(value)}")
        return self.cls(**_converted(self.cls, value, None))

    @property
    def field_classes(self) -> list[FieldClass]:
        """The one class, in a list."""
        return [FieldClass(self.cls.__name__, _infos(self.cls, None))]


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectByName(_ObjectField):
    """A field that holds a table: its key `name` chooses a dataclass, and its other keys are fields of that class.

    Case, `-` and `_` of names do not matter. A name is accepted in place of a table.
    """

    classes: Mapping[str, Any]
    default: str  # the name that a table without `name` means
    point: ExtensionPoint | None = None  # the kind of classes outside this package, if they are accepted
    common: type[Any] | None = None  # the type of those fields of the class whose object is chosen by name, too
    inside: ObjectByName | None = None  # how the object in such a field is chosen
    outer: tuple[str, ...] = ()  # names of wrappers, which are refused inside another wrapper

    def build(self, value: Any) -> NamedObject:
        """Build the object, with its name, from a field's value. Raises InputError, or FieldError if a key is wrong.

        If the name refers to code that is not allowed to run, no object is built, and the other keys are not checked.
        """
        if isinstance(value, NamedObject):
            return value
        table = self._table(value)
        name, given = table.get("name", self.default), {key: x for key, x in table.items() if key != "name"}
        known = matching(name, self.classes) if isinstance(name, str) else None
        if known:
            return self._named(known, self.classes[known], given)
        if isinstance(name, str) and (outer := matching(name, self.outer)):
            raise InputError(f"{outer} is a wrapper itself, and cannot be inside another one")
        if self.point is None or not is_outside(name, self.point):
            raise InputError(f"unknown name {_shown(name)}; known are {', '.join(self.classes)}"
                             f"{suggestion(name, self.classes)}")  # fmt: skip
        if is_reference(name) and not is_code_allowed():
            return NamedObject(name, given, self)
        name = resolved(name) if is_reference(name) else name
        return self._named(name, find_outside(name, self.point), given)

    def _table(self, value: Any) -> Table:
        """Return a field's value as a table; a name, or an object of a class in `classes`, becomes a table."""
        if isinstance(value, str):
            return {"name": value}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            cls = type(value)
            name = next((name for name, known in self.classes.items() if known is cls), None)
            if name is None:
                raise InputError(
                    f'{cls.__name__} is not in this package; name the file it is in, "my.py:{cls.__name__}", or give a '
                    "table with that name and its fields"
                )
            return {"name": name, **{f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}}
        if not isinstance(value, Mapping):
            raise InputError(f"must be a name or a table with a name, got {_shown(value)}")
        return value

    def _named(self, name: str, cls: Any, given: Table) -> NamedObject:
        """Build an object of `cls`, whose name is `name`, from the table `given`.

        The fields are checked in any case. If the object in one of them needs code that is not allowed to run, the
        result contains no object of `cls`.
        """
        values = _converted(cls, given, self)
        inside = {key: value for key, value in values.items() if isinstance(value, NamedObject)}
        is_loaded = all(value.is_loaded for value in inside.values())
        made = cls(**{key: x for key, x in values.items() if key not in inside},
                   **{key: value.made for key, value in inside.items() if is_loaded})  # fmt: skip
        fields = {f.name: getattr(made, f.name) for f in dataclasses.fields(cls)}
        return NamedObject(name, fields | inside, self, made if is_loaded else None)

    @property
    def field_classes(self) -> list[FieldClass]:
        """The classes of this package that can be chosen."""
        return [
            FieldClass(name, {"name": FieldInfo(annotation=str, default=name), **_infos(cls, self)}, self.default)
            for name, cls in self.classes.items()
        ]


def field_classes(kind: Any) -> list[FieldClass]:
    """Return the sections and classes that a field or type may hold; for a list, those of its entries."""
    if isinstance(kind, FieldInfo):
        parts = [one for one in kind.metadata if isinstance(one, _ObjectField)]
        return parts[0].field_classes if parts else field_classes(kind.annotation)
    if isinstance(kind, type) and issubclass(kind, Section):
        name = kind.model_fields["name"].default if kind.has_keys_of_its_name else None
        return [FieldClass(kind.__name__, kind.model_fields, name)]
    parts = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, _ObjectField)]
    return parts[0].field_classes if parts else [one for inside in get_args(kind) for one in field_classes(inside)]


def table_of(value: Any) -> Any:
    """Return an object as a table of all its fields, with its name if it has one; any other value unchanged."""
    if isinstance(value, NamedObject):
        return {key: table_of(x) for key, x in value.values().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return value


@contextmanager
def errors_at(key: str) -> Iterator[None]:
    """Turn an InputError in the block into a FieldError of the field `key`, or of a field inside that one."""
    try:
        yield
    except FieldError as error:
        raise FieldError(f"{key}.{error.key}", error.problem) from error
    except InputError as error:
        raise FieldError(key, str(error)) from error


def _converted(cls: Any, given: Table, choice: ObjectByName | None) -> dict[str, Any]:
    """Convert the table `given` to arguments of `cls`; an object chosen by name becomes a NamedObject.

    Raises FieldError for an unknown or a missing key.
    """
    types, fields = field_types(cls), {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in given:
        if key not in fields:
            names = sorted([*fields, *([] if choice is None else ["name"])])
            hint = suggestion(key, names) or f"; known are {', '.join(names)}"
            raise FieldError(key, f"unknown key{hint}")
    found = {key: _as_type(types[key], value) for key, value in given.items()}
    for key, field in fields.items():
        if key not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise FieldError(key, "a value is needed")
        if nested := _nested(choice, types[key]):
            with errors_at(key):
                found[key] = nested.build(given.get(key, field.default))
    return found


def _nested(choice: ObjectByName | None, kind: Any) -> ObjectByName | None:
    """Return how the object in a field is chosen by name; None for a field without such an object.

    choice: how the class that has the field is chosen. kind: the type of the field.
    """
    return choice.inside if choice is not None and kind is choice.common else None


def _as_type(kind: Any, value: Any) -> Any:
    """Convert `value` to the type of its field, if a file or flag spells it differently: 1 or "0.5" for a float.

    A value that cannot be converted is returned unchanged, and the class refuses it.
    """
    if _is_none(value) and kind in OPTIONAL_NUMBERS:
        return None
    if value is None and "none" in get_args(kind):
        return "none"  # flags read the word as no value
    if isinstance(value, bool) and kind in NUMBERS:
        return value
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError:
        return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))


def _is_none(value: Any) -> bool:
    return isinstance(value, str) and value == "none"


@cache
def _infos(cls: Any, choice: ObjectByName | None) -> dict[str, FieldInfo]:
    """Return type, default and meaning of every field of a dataclass."""
    types, found = field_types(cls), dict[str, FieldInfo]()
    for field in dataclasses.fields(cls):
        kind = types[field.name]
        if choice is not None and choice.inside is not None and kind is choice.common:
            kind = Annotated[NamedObject, choice.inside]
        default = PydanticUndefined if field.default is dataclasses.MISSING else field.default
        found[field.name] = FieldInfo(annotation=kind, default=default, description=field.metadata.get("meaning"))
    return found


def file_table(value: Any) -> Any:
    """Return a part of a configuration for a TOML file, without keys whose value is None.

    A field of an object is kept if its value is None and its default is not; its value in the file is then "none".
    """
    if isinstance(value, list | tuple):
        return [file_table(one) for one in value]
    if isinstance(value, Section | Mapping):
        values = value.values() if isinstance(value, Section) else value
        return {key: file_table(x) for key, x in values.items() if x is not None}
    if not dataclasses.is_dataclass(value):
        return value
    values, made = (value.values(), value.made) if isinstance(value, NamedObject) else (table_of(value), value)
    known = () if made is None else dataclasses.fields(made)
    has_default = {field.name for field in known if field.default not in (None, dataclasses.MISSING)}
    kept = {key: x for key, x in values.items() if x is not None or key in has_default}
    return {key: "none" if x is None else file_table(x) for key, x in kept.items()}


def _shown(value: object) -> str:
    return shortened(repr(value))
