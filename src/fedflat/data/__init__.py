"""Federated data: tensors, a client index, sources to load from and schemes to split by."""

from .federated import FederatedData
from .loading import load, prepare
from .partition import (
    IID,
    BalancedDirichlet,
    Dirichlet,
    DirichletRefill,
    Domain,
    LabelDirichlet,
    Natural,
    Partition,
    Pathological,
    PathologicalRefill,
    Shards,
)
from .sources import source_names

__all__ = [
    "IID", "BalancedDirichlet", "Dirichlet", "DirichletRefill", "Domain", "FederatedData", "LabelDirichlet",
    "Natural", "Partition", "Pathological", "PathologicalRefill", "Shards", "load", "prepare", "source_names",
]  # fmt: skip
