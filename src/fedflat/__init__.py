"""Federated learning that looks for flat minima."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data, methods, models
    from .adapters.lora import LoRA
    from .core.compression import Compression
    from .core.errors import NonFiniteError
    from .core.method import Method
    from .core.object_references import allow_code
    from .core.perturbation import Perturbation
    from .data import (
        IID,
        BalancedDirichlet,
        Dirichlet,
        DirichletRefill,
        Domain,
        FederatedData,
        LabelDirichlet,
        Natural,
        Partition,
        Pathological,
        PathologicalRefill,
        Shards,
    )
    from .engine.callbacks import BestModel, Callback, EarlyStopping
    from .engine.ranks import joined
    from .engine.run import Run
    from .engine.simulation import Simulation
    from .experiments.studies import load_run, study
    from .metrics.flatness import flatness
    from .reports.comparison import compare
    from .rounds.accountant import Privacy
    from .rounds.attack import Attack
    from .rounds.guard import Guard
    from .rounds.local_training import Client
    from .rounds.participation import Bernoulli, HeldOut, Unreliable

__version__ = "0.2.0"  # CITATION.cff and CHANGELOG.md say the same

__all__ = [
    "IID", "Attack", "BalancedDirichlet", "Bernoulli", "BestModel", "Callback", "Client", "Compression", "Dirichlet",
    "DirichletRefill", "Domain", "EarlyStopping", "FederatedData", "Guard", "HeldOut", "LabelDirichlet", "LoRA",
    "Method", "Natural", "NonFiniteError", "Partition", "Pathological", "PathologicalRefill", "Perturbation",
    "Privacy", "Run", "Shards", "Simulation", "Unreliable", "allow_code", "compare", "data", "flatness", "joined",
    "load_run", "methods", "models", "study",
]  # fmt: skip

# Nothing is imported before it is used, so that the command line starts at once: torch alone takes two seconds.
_MODULES = {
    "Attack": "rounds.attack",
    "Bernoulli": "rounds.participation",
    "BestModel": "engine.callbacks",
    "Callback": "engine.callbacks",
    "Client": "rounds.local_training",
    "Compression": "core.compression",
    "EarlyStopping": "engine.callbacks",
    "Guard": "rounds.guard",
    "HeldOut": "rounds.participation",
    "LoRA": "adapters.lora",
    "Method": "core.method",
    "NonFiniteError": "core.errors",
    "Perturbation": "core.perturbation",
    "Privacy": "rounds.accountant",
    "Run": "engine.run",
    "Simulation": "engine.simulation",
    "Unreliable": "rounds.participation",
    "allow_code": "core.object_references",
    "compare": "reports.comparison",
    "flatness": "metrics.flatness",
    "joined": "engine.ranks",
    "load_run": "experiments.studies",
    "study": "experiments.studies",
}  # of the names in __all__ that are not in `data`
_PACKAGES = (
    "adapters", "core", "data", "engine", "experiments", "federation", "metrics", "methods", "models", "reports",
    "rounds",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import `fedflat.NAME` when it is used for the first time."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'data')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
