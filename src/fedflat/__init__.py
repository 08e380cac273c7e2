"""Federated learning that looks for flat minima."""

from __future__ import annotations

import os

from .core.errors import NonFiniteError
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
from .engine.ranks import joined
from .engine.run import Run
from .engine.simulation import Simulation
from .metrics.flatness import flatness
from .reports import compare
from .rounds.local_training import Client
from .rounds.participation import Bernoulli

# Intel's matrix products round by where in memory a matrix begins, unless they are told not to before the first one:
# then a client's training has the same bits in every row of a stack. Measured, it costs no time.
os.environ.setdefault("MKL_CBWR", "AUTO")

__version__ = "0.1.0"

__all__ = [
    "IID", "BalancedDirichlet", "Bernoulli", "Client", "Dirichlet", "DirichletRefill", "Domain", "FederatedData",
    "LabelDirichlet", "Natural", "NonFiniteError", "Pathological", "PathologicalRefill", "Run", "Shards", "Simulation",
    "compare", "data", "flatness", "joined", "methods", "models",
]  # fmt: skip
