"""What a finished simulation leaves: its metrics, its model, and a summary to compare by."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from ..comm.cost import MethodCost, method_cost
from ..data.federated import Index
from ..metrics.accuracy import per_client, score, spread
from ..metrics.flatness import flatness as measure_flatness

if TYPE_CHECKING:
    from .simulation import Simulation

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


def finished_run(sim: Simulation, flatness: bool) -> Run:
    """The run that `sim` has made so far."""
    return Run(
        method=type(sim.method).__name__,
        seed=sim.seed,
        metrics=metrics_table(sim.history),
        summary=summarise(sim, flatness),
        settings=sim.settings() | {"hyper": vars(sim.method)},
        model=sim.model,
        w=sim.w,
        cost=method_cost(sim.method, sim.objective.space.d),
        counts=sim.data.counts(),
    )


def metrics_table(history: list[dict[str, float]]) -> pa.Table:
    """One row per round, one column per metric."""
    columns = dict.fromkeys(name for row in history for name in row)
    return pa.table({name: [row.get(name) for row in history] for name in columns})


def summarise(sim: Simulation, flatness: bool) -> dict[str, float]:
    """The numbers of the final model, by name; accuracies in [0, 1].

    `test_accuracy` and `test_accuracy_std` are mean and population standard deviation over the last
    10 evaluations, `test_accuracy_last` is the final model's.
    """
    values: dict[str, float] = {"rounds": sim.t, **_last_rounds(sim.history)}
    train = score(sim.objective, sim.w, sim.data.x, sim.data.y)
    clients = spread(per_client(train, sim.data))
    values |= {f"client_accuracy_{name}": value for name, value in asdict(clients).items()}
    values |= {name: sim.history[-1][name] for name in ("gradients", "bytes_down", "bytes_up", "drift")}
    values |= {"train_loss": train.mean_loss, "seconds": sum(row["seconds"] for row in sim.history)}
    return values | (measure_flatness(sim.model, sim.data) if flatness else {})


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
