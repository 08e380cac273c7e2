"""One scan for all registries: a package's modules are its entries, so a new file is a new entry and no list is edited.

Methods, models, data sets, partition schemes and measures are found this way. Listing modules imports none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules
from typing import Any, TypeGuard, TypeVar

LONGEST = 100  # characters of a name that are compared with the known ones

Entry = TypeVar("Entry")
Qualifies = Callable[[type[Any]], TypeGuard[type[Entry]]]  # whether a class is an entry


def plain(name: str) -> str:
    """Return `name` in lower case without `-` and `_`, so that `FedLESAM-D` and `fedlesam_d` are the same name."""
    return name.lower().replace("-", "").replace("_", "")


def matching(name: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` that equals `name` up to case, `-` and `_`; None if no name does."""
    wanted = plain(name)
    return next((one for one in known if plain(one) == wanted), None)


def known_names(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown `name`: the known names, and the most similar one, if any."""
    names = list(known)
    return f"known are {', '.join(names)}{suggestion(name, names)}"


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean NAME?` with the most similar name of `known`; an empty text if none is similar.

    The initials of the words in `name` are compared, too: `learning_rate` is similar to `lr`.
    """
    plainly, given = {plain(one): one for one in known}, str(name)[:LONGEST]
    initials = "".join(word[:1] for word in given.lower().split("_"))
    close = [initials] if initials in plainly else get_close_matches(plain(given), plainly, n=1)
    return f"; did you mean {plainly[close[0]]}?" if close else ""


def module_names(package: str) -> list[str]:
    """Return the modules of the imported `package` in alphabetical order, without its sub-packages."""
    return list(_files(tuple(sys.modules[package].__path__)))


@cache
def _files(folders: tuple[str, ...]) -> list[str]:
    """Return the modules in `folders`; cached, because listing all recipes calls this ten thousand times."""
    return [module.name for module in iter_modules(folders) if not module.ispkg]


def classes_of(package: str, module: str, qualifies: Qualifies[Entry]) -> list[type[Entry]]:
    """Import `module` of `package`; return the classes that it defines itself, that qualify and are not abstract."""
    return [cls for cls in _own_classes(f"{package}.{module}") if qualifies(cls)]


@cache
def _own_classes(module: str) -> list[type[Any]]:
    """Return the classes that a module itself defines and that are not abstract, looked up once in a process."""
    loaded = import_module(module)
    return [cls for _, cls in getmembers(loaded, isclass) if cls.__module__ == module and not isabstract(cls)]


def classes_by_file(package: str, qualifies: Qualifies[Entry]) -> dict[str, type[Entry]]:
    """Return the class of every module by the name that users write: its file's name with `-` for `_`."""
    names = module_names(package)
    return {name.replace("_", "-"): cls for name in names for cls in classes_of(package, name, qualifies)}


def find_class(package: str, name: str, qualifies: Qualifies[Entry]) -> type[Entry] | None:
    """Return the class called `name` up to case, `-` and `_`; None if there is none.

    The module of that name is searched before all others.
    """
    wanted = plain(name)
    modules = sorted(module_names(package), key=lambda module: plain(module) != wanted)
    classes = (cls for module in modules for cls in classes_of(package, module, qualifies))
    return next((cls for cls in classes if plain(cls.__name__) == wanted), None)
