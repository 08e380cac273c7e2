"""Data sets by name. One file each with a description `SOURCE`; a new file is found by itself."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ...core.errors import InputError
from ..source import Bundled, FileSet


def source_names() -> list[str]:
    """The names of all sources."""
    return [module.name for module in iter_modules(__path__)]


def known_source(name: str) -> str:
    """The source meant by `name`, written in any case and with or without `-` and `_`. Raises InputError."""
    meant = {_plain(known): known for known in source_names()}.get(_plain(name)) if isinstance(name, str) else None
    if meant is None:
        raise InputError(f"data.name = {name!r} is unknown; known are {', '.join(source_names())}")
    return meant


def source(name: str) -> FileSet | Bundled:
    """What the set `name` is. Raises InputError for an unknown name."""
    found: FileSet | Bundled = import_module(f"{__name__}.{known_source(name)}").SOURCE
    return found


def source_summary(name: str) -> str:
    """What the set `name` is, in one line."""
    return (import_module(f"{__name__}.{name}").__doc__ or "").strip().splitlines()[0]


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
