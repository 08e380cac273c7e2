"""Measures of flatness. Each file has one measure; a new file is found without registration."""

from __future__ import annotations

from functools import cache
from inspect import isabstract, isclass
from typing import Any, TypeGuard

from ....core.errors import InputError
from ....core.object_references import ExtensionPoint, find_outside, installed
from ....core.registry import classes_by_file, find_class, known_names
from ..measure import Measure

__all__ = ["MEASURES", "all_measures", "find", "find_measure"]


@cache
def all_measures() -> dict[str, type[Measure]]:
    """Return every measure of this folder by its name on the command line: its file's name with `-` for `_`."""
    return classes_by_file(__name__, _is_measure)


def find(name: str) -> Measure:
    """Make the measure called `name` with its default settings. Raises InputError as `find_measure` does."""
    return find_measure(name)()


def find_measure(name: str) -> type[Measure]:
    """Find the measure called `name`: one of this folder, an object reference, or an entry point of another package.

    Case, `-` and `_` do not matter. Raises InputError, listing the known names.
    """
    cls: type[Measure] | None = find_class(__name__, name, _is_measure) or find_outside(name, MEASURES)
    if cls is None:
        raise InputError(f"unknown measure {name!r}; {known_names(name, [*all_measures(), *installed(MEASURES)])}")
    return cls


def _is_measure(cls: type[Any]) -> TypeGuard[type[Measure]]:
    return issubclass(cls, Measure)


MEASURES = ExtensionPoint(
    "measures",
    "a measure of flatness: a subclass of fedflat.metrics.flatness.Measure with `measure`",
    lambda thing: isclass(thing) and issubclass(thing, Measure) and not isabstract(thing),
)
