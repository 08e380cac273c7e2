"""Data sets by name. One file each with a description `SOURCE`; a new file is found without further registration."""

from __future__ import annotations

from importlib import import_module

from ...core.errors import InputError
from ...core.registry import matching, module_names
from ..dataset import BundledDataset, FileDataset


def source_names() -> list[str]:
    """The names of all data sets."""
    return module_names(__name__)


def known_source(name: str) -> str:
    """The data set that `name` means; case, `-` and `_` do not matter. Raises InputError for an unknown one."""
    known = matching(name, source_names()) if isinstance(name, str) else None
    if known is None:
        raise InputError(f"data.name = {name!r} is unknown; known are {', '.join(source_names())}")
    return known


def source(name: str) -> FileDataset | BundledDataset:
    """The description of the data set `name`. Raises InputError for an unknown name."""
    found: FileDataset | BundledDataset = import_module(f"{__name__}.{known_source(name)}").SOURCE
    return found


def source_summary(name: str) -> str:
    """The data set `name` in one line: the first line of its file."""
    return (import_module(f"{__name__}.{name}").__doc__ or "").strip().splitlines()[0]
