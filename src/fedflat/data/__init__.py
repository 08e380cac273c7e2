"""Federated data: tensors, a client index, sources to load from and schemes to split by."""

from __future__ import annotations

from .federated import FederatedData
from .loading import load, prepare
from .partition import IID, Dirichlet, Partition, Pathological
from .sources import source_names

__all__ = ["IID", "Dirichlet", "FederatedData", "Partition", "Pathological", "load", "prepare", "source_names"]
