"""Data sets by name. One file each with a description `SOURCE`; a new file is found without further registration."""

from __future__ import annotations

from importlib import import_module

from ...core.errors import InputError
from ...core.object_references import ExtensionPoint, find_outside, installed, is_outside, is_reference, resolved
from ...core.registry import matching, module_names
from ..dataset import BundledDataset, FileDataset
from ..own_dataset import own_dataset

SOURCES = ExtensionPoint(
    "data", "a function without arguments that returns (x, y), ((x, y), test) or a LoadedDataset", callable
)


def source_names() -> list[str]:
    """The names of all data sets."""
    return module_names(__name__)


def known_source(name: str) -> str:
    """The name of the data set that `name` means: one of these, or a function outside this package.

    Case, `-` and `_` do not matter; the file of an object reference gets its full path. Raises InputError for an
    unknown name.
    """
    known = matching(name, source_names()) if isinstance(name, str) else None
    if known is None and is_outside(name, SOURCES):
        return resolved(name) if is_reference(name) else name
    if known is None:
        names = ", ".join([*source_names(), *installed(SOURCES)])
        raise InputError(f"data.name = {name!r} is unknown; known are {names}")
    return known


def source(name: str) -> FileDataset | BundledDataset:
    """The description of the data set `name`; one from outside is read for it.

    Raises InputError for an unknown name, and for a function that gives no data set.
    """
    known = known_source(name)
    if known not in source_names():
        return own_dataset(known, find_outside(known, SOURCES))
    found: FileDataset | BundledDataset = import_module(f"{__name__}.{known}").SOURCE
    return found


def source_summary(name: str) -> str:
    """The data set `name` in one line: the first line of its file."""
    return (import_module(f"{__name__}.{name}").__doc__ or "").strip().splitlines()[0]
