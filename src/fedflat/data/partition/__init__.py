"""Schemes that split labelled samples over clients. Each is in one file; a new file is found without registration."""

from __future__ import annotations

from functools import cache
from inspect import isabstract, isclass
from typing import Any, TypeGuard

from ...core.errors import InputError
from ...core.object_references import ExtensionPoint, find_outside, installed
from ...core.registry import classes_by_file, known_names, matching
from .balanced_dirichlet import BalancedDirichlet
from .dirichlet import Dirichlet
from .dirichlet_refill import DirichletRefill
from .domain import Domain
from .iid import IID
from .label_dirichlet import LabelDirichlet
from .natural import Natural
from .pathological import Pathological
from .pathological_refill import PathologicalRefill
from .scheme import Partition, Samples
from .shards import Shards

__all__ = [
    "IID", "PARTITIONS", "BalancedDirichlet", "Dirichlet", "DirichletRefill", "Domain", "LabelDirichlet", "Natural",
    "Partition", "Pathological", "PathologicalRefill", "Samples", "Shards", "all_partitions", "find",
]  # fmt: skip


@cache
def all_partitions() -> dict[str, type[Partition]]:
    """Return every scheme of this folder by its name on the command line: its file's name with `-` for `_`."""
    return classes_by_file(__name__, _is_partition)


def find(name: str) -> type[Partition]:
    """Return the scheme called `name`: one of this folder, an object reference, or an entry point of another package.

    Case, `-` and `_` do not matter. Raises InputError, which lists the known names, for an unknown name.
    """
    known = matching(name, all_partitions())
    cls: type[Partition] | None = all_partitions()[known] if known else find_outside(name, PARTITIONS)
    if cls is None:
        names = [*all_partitions(), *installed(PARTITIONS)]
        raise InputError(f"unknown partition {name!r}; {known_names(name, names)}")
    return cls


def _is_partition(cls: type[Any]) -> TypeGuard[type[Partition]]:
    return issubclass(cls, Partition)


PARTITIONS = ExtensionPoint(
    "partitions",
    "a partition: a subclass of fedflat.Partition with `split`",
    lambda thing: isclass(thing) and issubclass(thing, Partition) and not isabstract(thing),
)
