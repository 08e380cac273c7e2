"""Measures of flatness. One file each; a new file is found by itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules

from ..measure import Measure

__all__ = ["all_measures"]


@cache
def all_measures() -> dict[str, type[Measure]]:
    """Every measure of this folder by its name on the command line: its file's name with `-` for `_`."""
    modules = {module.name: import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)}
    return {
        name.replace("_", "-"): cls
        for name, module in modules.items()
        for _, cls in getmembers(module, isclass)
        if issubclass(cls, Measure) and cls.__module__ == module.__name__ and not isabstract(cls)
    }
