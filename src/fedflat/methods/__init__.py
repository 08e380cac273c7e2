"""The federated methods, in one file each; a new file in this folder is found without further registration.

The equations of a class, with meaning and unit of every letter, are in docs/methods, in a file named like the class.
"""

from __future__ import annotations

from functools import cache
from inspect import isabstract, isclass
from typing import TYPE_CHECKING, Any, TypeGuard

from ..core.errors import InputError
from ..core.method import Method
from ..core.object_references import ExtensionPoint, find_outside, installed
from ..core.registry import classes_of, find_class, known_names, module_names, plain
from ..core.user_code import check_method_class

__all__ = ["METHODS", "all_methods", "find", "plain"]


@cache
def all_methods() -> dict[str, type[Method]]:
    """Return every method of this folder by class name, in the order of their files' names."""
    classes = [cls for module in module_names(__name__) for cls in classes_of(__name__, module, _is_method)]
    return {cls.__name__: cls for cls in classes}


def find(name: str) -> type[Method]:
    """Find the method called `name`: one of this folder, an object reference, or an entry point of another package.

    Case, `-` and `_` do not matter. Raises InputError that lists the known methods.
    """
    cls: type[Method] | None = find_class(__name__, name, _is_method) or find_outside(name, METHODS)
    if cls is None:
        raise InputError(f"unknown method {name!r}; {known_names(name, [*all_methods(), *installed(METHODS)])}")
    return cls


def _is_own_method(thing: Any) -> bool:
    """Tell whether a class outside this folder is a method: any concrete subclass, with or without a paper."""
    return isclass(thing) and issubclass(thing, Method) and not isabstract(thing)


METHODS = ExtensionPoint(
    "methods",
    "a method: a subclass of fedflat.Method with `step`, `finish` and `update`",
    _is_own_method,
    check_method_class,
)


def _is_method(cls: type[Any]) -> TypeGuard[type[Method]]:
    """Tell whether a class is a method: it names its paper; other classes are bases that methods share."""
    return issubclass(cls, Method) and "paper" in vars(cls)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[Method]:
        """Return `fedflat.methods.FedSAM`, for every method in the folder."""
        cls = find_class(__name__, name, _is_method)
        if cls is not None and cls.__name__ == name:
            return cls
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *all_methods()]
