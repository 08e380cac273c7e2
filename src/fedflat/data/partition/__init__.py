"""Schemes that split labelled samples over clients. One file each; a new file is found by itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules

from .dirichlet import Dirichlet
from .iid import IID
from .pathological import Pathological
from .scheme import Partition

__all__ = ["IID", "Dirichlet", "Partition", "Pathological", "all_partitions"]


@cache
def all_partitions() -> dict[str, type[Partition]]:
    """Every scheme of this folder by its name on the command line."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return {
        cls.__name__.lower(): cls
        for module in modules
        for _, cls in getmembers(module, isclass)
        if issubclass(cls, Partition) and cls.__module__ == module.__name__ and not isabstract(cls)
    }
