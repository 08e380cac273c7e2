"""Data sets by name. One file each with a description `SOURCE`; a new file is found without further registration."""

from __future__ import annotations

from importlib import import_module

from ...core.errors import InputError, shortened
from ...core.object_references import ExtensionPoint, find_outside, installed, is_outside, is_reference, resolved
from ...core.registry import known_names, matching, module_names
from ..dataset import BundledDataset, FileDataset
from ..folder_dataset import FolderDataset
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
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InputError(f"data.name must be the name of a data set, got a {kind}; for samples of your own use "
                         "FederatedData.split(x, y, clients=...)")  # fmt: skip
    known = matching(name, source_names())
    if known is None and is_outside(name, SOURCES):
        return resolved(name) if is_reference(name) else name
    if known is None:
        names = [*source_names(), *installed(SOURCES)]
        raise InputError(f"data.name = {shortened(name)!r} is unknown; {known_names(name, names)}")
    return known


def source(name: str) -> FileDataset | BundledDataset | FolderDataset:
    """The description of the data set `name`; one from outside is read for it.

    Raises InputError for an unknown name, and for a function that gives no data set.
    """
    known = known_source(name)
    if known not in source_names():
        return own_dataset(known, find_outside(known, SOURCES))
    found: FileDataset | BundledDataset | FolderDataset = import_module(f"{__name__}.{known}").SOURCE
    return found


def is_folder(name: str) -> bool:
    """Whether `name` stands for a folder of the user's own, so that the folder decides which data there are."""
    return name in source_names() and isinstance(source(name), FolderDataset)


def source_summary(name: str) -> str:
    """The data set `name` in one line: the first line of its file."""
    return (import_module(f"{__name__}.{name}").__doc__ or "").strip().splitlines()[0]
