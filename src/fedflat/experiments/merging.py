"""The one rule of a table over a table: for files, flags, Python, the layers of recipes, and grids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..core.object_references import file_of, short_name
from ..core.registry import plain
from ..rounds.settings import flattened
from .schema import Member, Named, Section, members_of, table_of


def merged(model: type[BaseModel], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the table `new` over the table `old`, both of a configuration `model`; neither is changed.

    Keys that `new` does not have keep their values, in tables inside tables, too; lists are replaced. A name alone is a
    table with that name. A table with the name of another class, such as another partition, replaces the old one.
    """
    return {**old, **{key: _over(model.model_fields.get(key), old.get(key), value) for key, value in new.items()}}


def nested(key: str, value: Any) -> Any:
    """Return `{"client": {"lr": 0.1}}` for the key `client.lr` and the value 0.1."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _over(info: FieldInfo | None, old: Any, new: Any) -> Any:
    """Merge the value `new` over `old`, both of the field described by `info`."""
    members = [] if info is None or is_list(info) else members_of(info)
    if any("name" in one.fields for one in members):
        old, new = ({"name": value} if isinstance(value, str) else value for value in (old, new))
    new = new.values() if isinstance(new, Section | Named) else new  # another object takes the place of the old one
    old = old.values() if isinstance(old, Section | Named) else table_of(old)
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    if info is not None and _is_another(members, old, new):
        return dict(new)
    if info is not None and info.annotation == dict[str, Any]:  # a grid, whose keys may be dotted
        return flattened(old) | flattened(new)
    found = dict(old)
    for key, value in new.items():
        inside = (one.fields[key] for one in members if key in one.fields)
        found[key] = _over(next(inside, None), old.get(key), value)
    return found


def _is_another(members: list[Member], old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether `new` names another class than `old`, on which the other keys depend."""
    default = next((one.default_name for one in members if one.default_name), None)
    return "name" in new and default is not None and bool(_known(new["name"]) != _known(old.get("name", default)))


def _known(name: Any) -> Any:
    """Return a value that all spellings of a name share."""
    if not isinstance(name, str):
        return name
    file = file_of(name)
    return plain(name) if file is None else (file.expanduser().resolve(), short_name(name))


def is_list(info: FieldInfo) -> bool:
    """Tell whether a field is a list."""
    return getattr(info.annotation, "__origin__", None) is list
