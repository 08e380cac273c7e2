"""Sweeps: a grid over settings makes several runs of one method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from ..core.errors import InputError
from ..core.object_references import short_name
from ..methods import plain
from ..rounds.settings import flattened, settings_key
from .schema import Named

Table = Mapping[str, Any]


def are_different(values: Sequence[Any]) -> bool:
    """Whether no value is there twice."""
    return len({settings_key(value) for value in values}) == len(values)


def checked_grid(table: Table) -> dict[str, list[Any]]:
    """A grid with dotted keys. Raises InputError, naming the key, for values that are no list of different values."""
    grid = flattened(table)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{key} must be a list of values, got {values!r}")
        if not are_different(values):
            raise InputError(f"{key} has a value twice: {values!r}")
        if key == "seed":
            raise InputError("seed: the seeds of a study are called seeds")
    return grid


class SettingsGrid:
    """The points of a grid, for the methods of one study.

    A key `method.FIELD` goes for every method that has the field, `NAME.FIELD` for the method of that name, and every
    other key, such as `client.lr`, for all methods.
    """

    def __init__(self, values: Mapping[str, Any], methods: Sequence[Named], where: str = "grid") -> None:
        """where: the key of the grid. Raises InputError, naming the key, for one that no method of the study has."""
        self._values = values
        self._keys = [self._keys_of(method) for method in methods]
        unused = set(values) - {key for keys in self._keys for key in keys}
        if unused:
            key = min(unused)
            owner, _, field = key.partition(".")
            whose = "no method of the study" if owner == "method" else f"no method {owner}"
            raise InputError(f"{where}.{key}: there is {whose} with a field {field!r}")
        self._methods = methods

    @property
    def size(self) -> int:
        """How many runs there are for each seed."""
        return sum(prod(len(self._values[key]) for key in keys) for keys in self._keys)

    def points(self) -> Iterator[tuple[Named, dict[str, Any]]]:
        """Every method with the values of each of its points, by the key of the run's configuration."""
        for method, keys in zip(self._methods, self._keys, strict=True):
            for chosen in product(*(self._values[key] for key in keys)):
                yield method, {_key_of_run(key): value for key, value in zip(keys, chosen, strict=True)}

    def choices_of(self, method: Named) -> dict[str, Any]:
        """What the grid has for `method`, by the key of a run's configuration."""
        return {_key_of_run(key): self._values[key] for key in self._keys_of(method)}

    def _keys_of(self, method: Named) -> list[str]:
        """The keys of the grid that go for `method`, in their order."""
        return [key for key in self._values if self._goes_for(key, method)]

    def _goes_for(self, key: str, method: Named) -> bool:
        owner, _, field = key.partition(".")
        if owner == "method":
            return _has(method, field)
        mine = {plain(method.label), plain(short_name(method.name))}
        return not _names_method(key) or (plain(owner) in mine and _has(method, field))


def _has(section: Any, key: str) -> bool:
    """Whether a section has a field; `base.rho` is one of the section inside it."""
    values = section.values() if isinstance(section, Named) else section
    name, dot, rest = key.partition(".")
    return isinstance(values, Mapping) and name in values and (not dot or _has(values[name], rest))


def _names_method(key: str) -> bool:
    """Whether a key is of one method, whose name it begins with: sections of a configuration are in small letters."""
    return "." in key and not key[0].islower()


def _key_of_run(key: str) -> str:
    """The key in the configuration of a run: that of its one method, for a method's own key."""
    return f"method.{key.partition('.')[2]}" if _names_method(key) else key
