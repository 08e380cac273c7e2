"""Measures of flatness. One file each; a new file is found without further registration."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeGuard

from ....core.errors import InputError
from ....core.registry import classes_by_file, find_class, known_names
from ..measure import Measure

__all__ = ["all_measures", "find"]


@cache
def all_measures() -> dict[str, type[Measure]]:
    """Every measure of this folder by its name on the command line: its file's name with `-` for `_`."""
    return classes_by_file(__name__, _is_measure)


def find(name: str) -> Measure:
    """The measure called `name` with its default settings; case, `-` and `_` do not matter."""
    cls = find_class(__name__, name, _is_measure)
    if cls is None:
        raise InputError(f"unknown measure {name!r}; {known_names(name, all_measures())}")
    return cls()


def _is_measure(cls: type[Any]) -> TypeGuard[type[Measure]]:
    return issubclass(cls, Measure)
