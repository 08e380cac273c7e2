"""Data sets by name. One file each with a function `read`; a new file is found by itself."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from ...core.errors import InputError
from ..federated import FederatedData
from ..partition import IID, Partition
from .source import Source


def source_names() -> list[str]:
    """The names of all sources."""
    return [module.name for module in iter_modules(__path__) if module.name != "source"]


def source_summary(name: str) -> str:
    """What the set `name` is, in one line."""
    return (import_module(f"{__name__}.{name}").__doc__ or "").strip().splitlines()[0]


def load(name: str, clients: int, partition: Partition | None = None, seed: int = 0) -> FederatedData:
    """The set `name` split over `clients` clients (default split: IID). The same seed gives the same split.

    Raises ValueError for an unknown name or a split that cannot be made.
    """
    if name not in source_names():
        raise InputError(f"data.name = {name!r} is unknown; known are {', '.join(source_names())}")
    for what, value, least in (("clients", clients, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"data.{what} must be a whole number of at least {least}, got {value!r}")
    if not isinstance(partition, Partition | None):
        raise InputError(f"partition must be a scheme such as Dirichlet(alpha=0.1), got {partition!r}")
    source: Source = import_module(f"{__name__}.{name}").read()
    scheme = partition or IID()
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    parts = scheme.split(source.y.numpy(), source.classes, clients, rng)
    return FederatedData(
        x=source.x,
        y=source.y,
        members=np.concatenate(parts),
        offsets=np.cumsum([0, *map(len, parts)], dtype=np.int64),
        classes=source.classes,
        test=source.test,
        name=name,
        partition=str(scheme),
    )
