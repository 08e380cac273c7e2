"""What a finished simulation leaves: its metrics, its model, and a summary to compare by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from ..comm.cost import MethodCost
from ..core.objective import Objective
from ..data.federated import FederatedData, Index
from ..metrics.accuracy import held_loss, per_client, score, spread

LAST_ROUNDS = 10  # evaluations over which the reported accuracy is averaged


@dataclass(frozen=True)
class Run:
    """A finished run."""

    method: str  # class name
    seed: int
    metrics: pa.Table  # one row per round: t, lr, test_accuracy, drift, ...; empty cells where not evaluated
    summary: dict[str, float]
    settings: dict[str, Any]
    model: nn.Module
    w: Tensor  # (d,)
    cost: MethodCost
    counts: Index  # samples per client and class, (clients, classes)


def metrics_table(history: list[dict[str, float]]) -> pa.Table:
    """One row per round, one column per metric."""
    columns = dict.fromkeys(name for row in history for name in row)
    return pa.table({name: [row.get(name) for row in history] for name in columns})


def summarise(
    objective: Objective, w: Tensor, data: FederatedData, history: list[dict[str, float]]
) -> dict[str, float]:
    """The numbers of the final model `w` (d,), by name; accuracies in [0, 1].

    `test_accuracy` and `test_accuracy_std` are mean and population standard deviation over the last
    10 evaluations, `test_accuracy_last` is the final model's.
    """
    values: dict[str, float] = {"rounds": len(history), **_last_rounds(history)}
    train = score(objective, w, data.x, data.y)
    clients = spread(per_client(train, data))
    values |= {f"client_accuracy_{name}": value for name, value in asdict(clients).items()}
    values |= {name: history[-1][name] for name in ("gradients", "bytes_down", "bytes_up", "drift")}
    return values | {"train_loss": held_loss(train, data), "seconds": sum(row["seconds"] for row in history)}


def _last_rounds(history: list[dict[str, float]]) -> dict[str, float]:
    evaluated = [row for row in history if "test_accuracy" in row]
    if not evaluated:
        return {}
    last = np.array([row["test_accuracy"] for row in evaluated[-LAST_ROUNDS:]])
    return {
        "test_accuracy": float(last.mean()),
        "test_accuracy_std": float(last.std()),
        "test_accuracy_last": float(last[-1]),
        "test_loss_last": evaluated[-1]["test_loss"],
    }
