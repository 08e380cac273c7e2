"""Federated learning that looks for flat minima."""

from __future__ import annotations

from . import data, methods, models
from .data import (
    IID,
    BalancedDirichlet,
    Dirichlet,
    DirichletRefill,
    Domain,
    FederatedData,
    LabelDirichlet,
    Natural,
    Pathological,
    PathologicalRefill,
    Shards,
)
from .engine.client import Client
from .engine.cohort import NonFiniteError
from .engine.participation import Bernoulli
from .engine.run import Run
from .engine.simulation import Simulation
from .metrics.flatness import flatness
from .reports import compare

__version__ = "0.1.0"

__all__ = [
    "IID", "BalancedDirichlet", "Bernoulli", "Client", "Dirichlet", "DirichletRefill", "Domain", "FederatedData",
    "LabelDirichlet", "Natural", "NonFiniteError", "Pathological", "PathologicalRefill", "Run", "Shards", "Simulation",
    "compare", "data", "flatness", "methods", "models",
]  # fmt: skip
