"""Tables of settings: how two are merged, grids of settings, and labels from the settings in which runs differ.

Files, flags, Python, the layers of recipes and grids are all merged by `merged`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..core.errors import InputError
from ..core.object_references import file_of, short_name
from ..core.registry import plain
from ..rounds.settings import flattened, settings_key
from .schema import NamedObject, Section, field_classes, table_of

Table = Mapping[str, Any]
LONGEST = 40  # characters of a value in a label; longer ones are cut


def merged(model: type[BaseModel], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the table `new` over the table `old`, both of a configuration `model`; neither is changed.

    Keys that `new` lacks keep their values, also in nested tables; lists are replaced. A name in place of a table means
    a table with only that name. A table with the name of another class, such as another partition, replaces the old
    table.
    """
    return {**old, **{key: _over(model.model_fields.get(key), old.get(key), value) for key, value in new.items()}}


def nested(key: str, value: Any) -> Any:
    """Return `{"client": {"lr": 0.1}}` for the key `client.lr` and the value 0.1."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _over(info: FieldInfo | None, old: Any, new: Any) -> Any:
    """Merge the value `new` over `old`, both of the field described by `info`."""
    classes = [] if info is None or is_list(info) else field_classes(info)
    if any("name" in cls.fields for cls in classes):
        old, new = ({"name": value} if isinstance(value, str) else value for value in (old, new))
    new = new.values() if isinstance(new, Section | NamedObject) else new  # an object replaces the old one
    old = old.values() if isinstance(old, Section | NamedObject) else table_of(old)
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    default = next((cls.default_name for cls in classes if cls.default_name), None)
    if default and "name" in new and _known(new["name"]) != _known(old.get("name", default)):
        return dict(new)  # another class, on which the other keys depend
    if info is not None and info.annotation == dict[str, Any]:  # a grid, whose keys may be dotted
        return flattened(old) | flattened(new)
    table = dict(old)
    for key, value in new.items():
        inside = (cls.fields[key] for cls in classes if key in cls.fields)
        table[key] = _over(next(inside, None), old.get(key), value)
    return table


def _known(name: Any) -> Any:
    """Return a key that is equal for all spellings of a name."""
    if not isinstance(name, str):
        return name
    file = file_of(name)
    return plain(name) if file is None else (file.expanduser().resolve(), short_name(name))


def is_list(info: FieldInfo) -> bool:
    """Tell whether a field is a list."""
    return getattr(info.annotation, "__origin__", None) is list


def checked_grid(table: Table) -> dict[str, list[Any]]:
    """Return a grid with dotted keys. Raises InputError, naming the key, if one has no list of different values."""
    grid = flattened(table)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{key} must be a list of values, got {values!r}")
        if len({settings_key(value) for value in values}) < len(values):
            raise InputError(f"{key} has a value twice: {values!r}")
        if key == "seed":
            raise InputError("seed: the seeds of a study are called seeds")
    return grid


class SettingsGrid:
    """The points of a grid, for the methods of one study.

    A key `method.FIELD` applies to every method that has the field, `NAME.FIELD` to the method of that name, and any
    other key, such as `client.lr`, to all methods.
    """

    def __init__(self, values: Mapping[str, Any], methods: Sequence[NamedObject], where: str = "grid") -> None:
        """Raise InputError, naming the key, for a field that no method has.

        where: the key of the grid in the configuration, for messages.
        """
        self._values = values
        self._keys = [self._keys_of(method) for method in methods]
        unused = set(values) - {key for keys in self._keys for key in keys}
        if unused:
            key = min(unused)
            owner, _, field = key.partition(".")
            whose = "no method of the study" if owner == "method" else f"no method {owner}"
            raise InputError(f"{where}.{key}: {whose} has a field {field!r}")
        self._methods = methods

    @property
    def size(self) -> int:
        """The number of runs for each seed."""
        return sum(prod(len(self._values[key]) for key in keys) for keys in self._keys)

    def points(self) -> Iterator[tuple[NamedObject, dict[str, Any]]]:
        """Yield each point of the grid: its method, and its values by the key of a run's configuration."""
        for method, keys in zip(self._methods, self._keys, strict=True):
            for chosen in product(*(self._values[key] for key in keys)):
                yield method, {_key_of_run(key): value for key, value in zip(keys, chosen, strict=True)}

    def choices_of(self, method: NamedObject) -> dict[str, Any]:
        """Return the values of the grid for `method`, by the key of a run's configuration."""
        return {_key_of_run(key): self._values[key] for key in self._keys_of(method)}

    def _keys_of(self, method: NamedObject) -> list[str]:
        """Return the keys of the grid that apply to `method`, in their order."""
        return [key for key in self._values if self._applies_to(key, method)]

    def _applies_to(self, key: str, method: NamedObject) -> bool:
        owner, _, field = key.partition(".")
        if owner == "method":
            return _has(method, field)
        names = {plain(method.label), plain(short_name(method.name))}
        return not _names_method(key) or (plain(owner) in names and _has(method, field))


def _has(section: Any, key: str) -> bool:
    """Tell whether a section has a field; `base.rho` is the field `rho` of the section `base` inside the section."""
    values = section.values() if isinstance(section, NamedObject) else section
    name, dot, rest = key.partition(".")
    return isinstance(values, Mapping) and name in values and (not dot or _has(values[name], rest))


def _names_method(key: str) -> bool:
    """Tell whether a key begins with the name of a method; names of sections begin with a small letter."""
    return "." in key and not key[0].islower()


def _key_of_run(key: str) -> str:
    """Return the key in the configuration of a run, whose one method is `method`."""
    return f"method.{key.partition('.')[2]}" if _names_method(key) else key


def labels(methods: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each run, such as `FedSAM(rho=0.1, lr=0.05)`, from its method and its settings by name.

    Two runs have the same label if and only if they have the same method and settings. A setting of the method
    (`method.rho`) is shown in the labels of methods whose runs differ in it. A setting of local training (`client.lr`)
    is shown in all labels if runs of one method differ in it. Any other setting is shown in all labels if any two runs
    differ in it. A setting that is None or missing is left out.
    """
    shown = shown_values(methods, settings)
    return [f"{method}({values})" if values else method for method, values in zip(methods, shown, strict=True)]


def variants(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, for each configuration of one method, the settings that distinguish it, such as `rho=0.1, lr=0.05`."""
    return shown_values([""] * len(tables), [flattened(table) for table in tables])


def shown_values(methods: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text in the brackets of each label that `labels` returns; empty if there are no brackets."""
    names = list(dict.fromkeys(name for table in settings for name in table))
    names.sort(key=lambda name: not name.startswith("method."))  # the method's own come first
    texts = _texts_by_name(settings)
    showing = {name: _methods_showing(name, methods, texts[name]) for name in names}
    short = _short([name for name in names if showing[name]], names)
    labels = []
    for place, method in enumerate(methods):
        own = [name for name in short if method in showing[name] and texts[name][place] is not None]
        labels.append(", ".join(f"{short[name]}={_cut(str(texts[name][place]))}" for name in own))
    return labels


def identities(methods: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[frozenset[tuple[str, str]]]:
    """Return a key for each run, equal only for runs of one method with the same settings; long values are not cut."""
    keys = [{("", method)} for method in methods]
    for name, texts in _texts_by_name(settings).items():
        for key, text in zip(keys, texts, strict=True):
            key.update(() if text is None else {(name, text)})
    return list(map(frozenset, keys))


def _texts_by_name(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """Return the values of each setting as text, in the order of the runs."""
    names = dict.fromkeys(name for table in settings for name in table)
    return {name: _texts([table.get(name) for table in settings]) for name in names}


def _methods_showing(name: str, methods: Sequence[str], texts: Sequence[str | None]) -> set[str]:
    """Return the methods whose labels show the setting `name`."""
    seen: dict[str, set[str | None]] = {}
    for method, text in zip(methods, texts, strict=True):
        seen.setdefault(method, set()).add(text)
    within = {method for method, values in seen.items() if len(values) > 1}
    if name.startswith("method."):
        return within
    differs = bool(within) if name.startswith("client.") else len(set(texts)) > 1
    return set(methods) if differs else set()


def _texts(values: Sequence[Any]) -> list[str | None]:
    """Return values as text; equal numbers have equal texts."""
    is_float = any(isinstance(value, float) for value in values)
    return [None if value is None else str(float(value) if is_float and type(value) is int else value)
            for value in values]  # fmt: skip


def _cut(text: str) -> str:
    """Return a value's text; a long one is cut, and gets a digest so that different values stay different."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}… {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _short(shown: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return each of the `shown` names without its section, such as `client.`, by the name with the section.

    A name keeps its section if another of the `names` is the same without section; names of the section `method` never
    keep it.
    """
    shared = Counter(name.rpartition(".")[2] for name in names)
    return {
        name: last if shared[last := name.rpartition(".")[2]] == 1 or name.startswith("method.") else name
        for name in shown
    }
