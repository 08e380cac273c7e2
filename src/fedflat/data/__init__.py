"""Federated data: samples as tensors with the samples that each client holds, data sets by name, and split schemes."""

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
