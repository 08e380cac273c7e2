"""Schemes that split labelled samples over clients. One file each; a new file is found without further registration."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeGuard

from ...core.registry import classes_by_file
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
    "IID", "BalancedDirichlet", "Dirichlet", "DirichletRefill", "Domain", "LabelDirichlet", "Natural", "Partition",
    "Pathological", "PathologicalRefill", "Samples", "Shards", "all_partitions",
]  # fmt: skip


@cache
def all_partitions() -> dict[str, type[Partition]]:
    """Every scheme of this folder by its name on the command line: its file's name with `-` for `_`."""
    return classes_by_file(__name__, _is_partition)


def _is_partition(cls: type[Any]) -> TypeGuard[type[Partition]]:
    return issubclass(cls, Partition)
