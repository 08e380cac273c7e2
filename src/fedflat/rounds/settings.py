"""Settings as data: tables of plain values to store and show, the differences of two tables, and digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ..core.errors import InputError
from ..core.hyper import unused_later_fields

CLASS = "class"  # the key of a table that names the class; no field can be called that


def table_of(thing: Any) -> dict[str, Any]:
    """Return a dataclass, such as a method, as a table: its class and all its fields.

    A field that is a dataclass, such as a method inside a method, becomes a table, too. A number, a text, a
    Boolean, None and a sequence of texts are kept; any other value, such as a list of cohorts, becomes its text. If
    `thing` is no dataclass, its attributes count as fields. Fields declared with `later` (see `core.hyper.hyper`) are
    left out while they have their defaults.
    """
    names = [f.name for f in fields(thing)] if is_dataclass(thing) else vars(thing)
    values = {name: _plain(getattr(thing, name)) for name in names}
    unused = unused_later_fields(values, thing) if is_dataclass(thing) else set()
    return {CLASS: type(thing).__name__, **{name: value for name, value in values.items() if name not in unused}}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return table_of(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return list(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def text_of_table(table: Any) -> str:
    """Return a table as the text of its dataclass, such as `Dirichlet(alpha=0.1)`; any other value as its text."""
    if not isinstance(table, Mapping):
        return str(table)
    return f"{table[CLASS]}({', '.join(f'{name}={_literal(x)}' for name, x in table.items() if name != CLASS)})"


def _literal(value: Any) -> str:
    is_list = isinstance(value, str) and value.startswith("[")  # of cohorts, which is a text in the table
    return text_of_table(value) if isinstance(value, Mapping) or is_list else repr(value)


def text_of_data(data: Mapping[str, Any]) -> str:
    """Return the name of a data set, its number of clients and how it is split, as one text."""
    return f"{data['name']}, {data['clients']} clients, {text_of_table(data['partition'])}"


def text_of_model(model: Mapping[str, Any]) -> str:
    """Return the class of a model, its number of parameters and their type, as one text."""
    return f"{model[CLASS]}, {model['parameters']} parameters, torch.{model['dtype']}"


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a table by dotted key: `{"client": {"lr": 0.1}}` becomes `{"client.lr": 0.1}`.

    Raises InputError for a key that is given both nested and dotted.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        inside = flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        if twice := found.keys() & inside.keys():
            raise InputError(f"{min(twice)} is given twice")
        found |= inside
    return found


def fields_by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in a table of `table_of`, by name.

    For a field `base` that is a dataclass, `base` is the name of its class, and its fields are named as in `base.rho`.
    """
    return {name.removesuffix(f".{CLASS}"): value for name, value in flattened(table).items() if name != CLASS}


def settings_key(settings: Any) -> str:
    """Return a text that two settings share only if they are the same: 1, 1.0, true and "1" are four values."""
    return json.dumps(settings, sort_keys=True, default=repr)


def digest(settings: Any, digits: int = 64) -> str:
    """Return the first hexadecimal digits of the SHA-256 of settings."""
    return hashlib.sha256(settings_key(settings).encode()).hexdigest()[:digits]


def are_same(old: Any, new: Any) -> bool:
    """Tell whether two settings are the same; 1, 1.0, true and "1" are four values."""
    return settings_key(old) == settings_key(new)


def first_difference(
    old: Any, new: Any, same: Callable[[Any, Any], bool] = are_same, key: str = ""
) -> tuple[str, Any, Any] | None:
    """Return the first dotted key whose values in two tables are not the `same`, and both values; else None.

    For tables of different classes, the values are the class names.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        if old.get(CLASS) != new.get(CLASS):
            return key, old.get(CLASS), new.get(CLASS)
        for name in dict.fromkeys([*old, *new]):
            if found := first_difference(old.get(name), new.get(name), same, f"{key}.{name}" if key else name):
                return found
        return None
    return None if same(old, new) else (key, _shown(old), _shown(new))


def _shown(value: Any) -> Any:
    return text_of_table(value) if isinstance(value, Mapping) and CLASS in value else value
