"""Data sets by name. One file each with a description `SOURCE`; a new file is found without further registration."""

from __future__ import annotations

from importlib import import_module

from ...core.errors import InputError, shortened
from ...core.registry import known_names, matching, module_names
from ..dataset import BundledDataset, FileDataset
from ..folder_dataset import FolderDataset


def source_names() -> list[str]:
    """The names of all data sets."""
    return module_names(__name__)


def known_source(name: str) -> str:
    """The data set that `name` means; case, `-` and `_` do not matter. Raises InputError for an unknown one."""
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InputError(f"data.name must be the name of a data set, got a {kind}; for samples of your own use "
                         "FederatedData.split(x, y, clients=...)")  # fmt: skip
    known = matching(name, source_names())
    if known is None:
        raise InputError(f"data.name = {shortened(name)!r} is unknown; {known_names(name, source_names())}")
    return known


def source(name: str) -> FileDataset | BundledDataset | FolderDataset:
    """The description of the data set `name`. Raises InputError for an unknown name."""
    found: FileDataset | BundledDataset | FolderDataset = import_module(f"{__name__}.{known_source(name)}").SOURCE
    return found


def is_folder(name: str) -> bool:
    """Whether `name` stands for a folder of the user's own, so that the folder decides which data there are."""
    return isinstance(source(name), FolderDataset)


def source_summary(name: str) -> str:
    """The data set `name` in one line: the first line of its file."""
    return (import_module(f"{__name__}.{name}").__doc__ or "").strip().splitlines()[0]
