"""The methods. One file each; a new file in this folder is found by itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..core.method import Method


@cache
def all_methods() -> dict[str, type[Method]]:
    """Every method of this folder by class name, in the order of their files' names.

    A class that states its paper is a method; one that does not is a base that methods share.
    """
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return {
        name: cls
        for module in modules
        for name, cls in getmembers(module, isclass)
        if issubclass(cls, Method)
        and cls.__module__ == module.__name__
        and "paper" in vars(cls)
        and not isabstract(cls)
    }


def plain(name: str) -> str:
    """A method's name without case, `-` and `_`: `FedLESAM-D`, `fedlesam_d` and `FedLESAM_D` are one."""
    return name.lower().replace("-", "").replace("_", "")


def find(name: str) -> type[Method]:
    """The method called `name`; raises ValueError that lists the known ones."""
    for known, cls in all_methods().items():
        if plain(known) == plain(name):
            return cls
    raise InputError(f"unknown method {name!r}; known are {', '.join(all_methods())}")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[Method]:
        """`fedflat.methods.FedSAM`, for every method there is."""
        methods = all_methods()
        if name in methods:
            return methods[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *all_methods()]
