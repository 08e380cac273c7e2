"""Schemes that split labelled samples over clients. One file each; a new file is found by itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from inspect import getmembers, isabstract, isclass
from pkgutil import iter_modules

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
    "IID",
    "BalancedDirichlet",
    "Dirichlet",
    "DirichletRefill",
    "Domain",
    "LabelDirichlet",
    "Natural",
    "Partition",
    "Pathological",
    "PathologicalRefill",
    "Samples",
    "Shards",
    "all_partitions",
]


@cache
def all_partitions() -> dict[str, type[Partition]]:
    """Every scheme of this folder by its name on the command line: its file's name with `-` for `_`."""
    modules = {module.name: import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)}
    return {
        name.replace("_", "-"): cls
        for name, module in modules.items()
        for _, cls in getmembers(module, isclass)
        if issubclass(cls, Partition) and cls.__module__ == module.__name__ and not isabstract(cls)
    }
