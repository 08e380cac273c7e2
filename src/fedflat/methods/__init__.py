"""The federated methods. One file each; a new file in this folder is found without further registration."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

from ..core.errors import InputError
from ..core.method import Method
from ..core.registry import classes_of, find_class, known_names, module_names, plain

__all__ = ["all_methods", "find", "plain"]


@cache
def all_methods() -> dict[str, type[Method]]:
    """Every method of this folder by class name, in the order of their files' names."""
    classes = [cls for module in module_names(__name__) for cls in classes_of(__name__, module, _is_method)]
    return {cls.__name__: cls for cls in classes}


def find(name: str) -> type[Method]:
    """The method called `name`; case, `-` and `_` do not matter. Raises InputError that lists the known ones."""
    cls = find_class(__name__, name, _is_method)
    if cls is None:
        raise InputError(f"unknown method {name!r}; {known_names(name, all_methods())}")
    return cls


def _is_method(cls: type[Any]) -> TypeGuard[type[Method]]:
    """A class that names its paper is a method; one that does not is a base class that methods share."""
    return issubclass(cls, Method) and "paper" in vars(cls)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[Method]:
        """`fedflat.methods.FedSAM`, for every method in the folder."""
        cls = find_class(__name__, name, _is_method)
        if cls is not None and cls.__name__ == name:
            return cls
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *all_methods()]
