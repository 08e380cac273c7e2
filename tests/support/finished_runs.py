"""Finished runs with given accuracies, for tables and pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fedflat.metrics.flatness import Flatness
from fedflat.reports.run_settings import HASHES
from fedflat.rounds.local_training import Client
from fedflat.rounds.participation import Share
from fedflat.rounds.settings import CLASS, table_of

SPENT = ("gradients", "bytes_down", "bytes_up")


SPLIT = {
    "clients": 3, "samples": 3, "smallest": 1, "median": 1.0, "largest": 1, "fewest_classes": 1, "mean_classes": 1.0,
    "most_classes": 1, "unused": 0, "duplicated": 0, "validation": 0,
}  # fmt: skip


@dataclass
class Fake:
    """A finished run with given accuracies."""

    method: str
    seed: int
    accuracies: list[float]
    hyper: dict[str, Any] = field(default_factory=dict)
    partition_hash: str = "same"
    client: Client = field(default_factory=Client)
    data: dict[str, Any] = field(default_factory=lambda: split_data("x"))
    rounds: int | None = None
    more: dict[str, Any] = field(default_factory=dict)  # further settings
    columns: dict[str, list[float]] = field(default_factory=dict)  # further metrics
    counts: np.ndarray = field(default_factory=lambda: np.eye(3, dtype=int))
    flatness: Flatness = field(default_factory=lambda: Flatness(()))
    clients: Any = None  # their scores

    @property
    def metrics(self) -> pa.Table:
        n = len(self.accuracies)
        spent = {name: [float(t + 1) for t in range(n)] for name in SPENT}
        return pa.table({"t": range(n), "test_accuracy": self.accuracies, **spent, **self.columns})

    @property
    def summary(self) -> dict[str, float]:
        clients = {"mean": 0.7, "std": 0.1, "worst": 0.5, "best": 0.9}
        own = {"rounds": self.rounds or len(self.accuracies), "test_accuracy": self.accuracies[-1], "vector_bytes": 0.5}
        own |= {"test_accuracy_last": self.accuracies[-1], "test_accuracy_evaluations": 1}
        return own | {f"client_accuracy_{name}": value for name, value in clients.items()} | dict.fromkeys(SPENT, 2e6)

    @property
    def settings(self) -> dict[str, Any]:
        of_runs = dict.fromkeys(("method_code", "augmentation", "adapter", "guard", "attack", "privacy", "base_hash"))
        texts = dict.fromkeys((*HASHES, "layers", "loss", "weights", "precision", "executor"), "x")
        tables = {"method": {CLASS: self.method, **self.hyper}, "client": table_of(self.client), "data": self.data,
                  "participation": table_of(Share(1.0)), "model": model_of("x", 1)}  # fmt: skip
        own = {"label": self.method, "partition_hash": self.partition_hash, "split": SPLIT}
        return texts | of_runs | tables | own | self.more


def split_data(name: str, clients: int = 3, scheme: Any = "x") -> dict[str, Any]:
    """The settings of data that `scheme`, a partition or a text, has split."""
    return {"name": name, "clients": clients, "partition": scheme if isinstance(scheme, str) else table_of(scheme)}


def model_of(name: str, parameters: int) -> dict[str, Any]:
    """The settings of a model."""
    return {CLASS: name, "parameters": parameters, "dtype": "float32"}
