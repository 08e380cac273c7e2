"""Federated data: tensors, a client index, sources to load from and schemes to split by."""

from __future__ import annotations

from .federated import FederatedData
from .partition import IID, Dirichlet, Partition, Pathological
from .sources import load, source_names

__all__ = ["IID", "Dirichlet", "FederatedData", "Partition", "Pathological", "load", "source_names"]
