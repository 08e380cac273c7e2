"""What a finished simulation leaves: its metrics, its model, and a summary to compare by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..core.errors import InputError
from ..data.sample_kind import SampleKind
from ..data.types import Index
from ..metrics.flatness import Flatness
from ..metrics.protocols import AccuracyCurve
from ..rounds.cost import MethodCost
from .evaluation import Evaluated, predict
from .run_files import save_run

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run."""

    method: str  # class name
    seed: int
    metrics: pa.Table  # one row per round: t, lr, test_accuracy, drift, ...; empty cells where not evaluated
    summary: dict[str, float]
    settings: dict[str, Any]
    model: nn.Module  # in evaluation mode
    w: Tensor  # (d,)
    cost: MethodCost
    counts: Index  # samples per client and class, (clients, classes)
    flatness: Flatness  # what was measured on the final model; empty if nothing was asked for
    samples: SampleKind  # what the model takes
    # How `fedflat.models.build` makes the module: name, options, classes, shape, dtype; None if a module was given.
    architecture: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Method, seed, rounds and accuracy."""
        return f"Run({short_description(self.method, self.seed, self.summary)})"

    def predict(self, x: Any, classes: bool = False) -> Tensor:
        """Compute the scores (n, k) of samples `x` (n, *shape), or with `classes` the class of each, int64 (n,).

        x: samples as they were given for training, before any scaling: an array, a tensor, a list of pictures or
        texts, or a dataset, whose labels are left aside. Of a multi-label task `classes` are 0 and 1 (n, k); a
        regression has none. Computed in batches on the model's device, in evaluation mode; the result is on the CPU.

        Raises InputError for another shape or kind of numbers (uint8, whole numbers, floats) than in training.
        """
        return predict(self.model, self.samples, x, classes)

    def save(self, folder: str | Path) -> None:
        """Write metrics, model, summary and measures into a new folder, which `fedflat.load_run` and reports read.

        Of a module of your own the parameters alone are kept: `fedflat.load_run(folder).load_into(module)` puts them
        into another one. Data are not kept, so there is nothing to go on with or to measure on.

        Raises InputError if the folder holds anything or cannot be written.
        """
        save_run(self, Path(folder))

    def to_pandas(self) -> Any:
        """`metrics` as a pandas DataFrame. Raises InputError if pandas is not installed."""
        return metrics_frame(self.metrics)


def short_description(method: str, seed: int, summary: Mapping[str, float]) -> str:
    """A run in a few words, e.g. `FedSAM, seed 0, 50 rounds, test accuracy 91.20 %`."""
    accuracy = summary.get("test_accuracy")
    tested = "" if accuracy is None else f", test accuracy {100 * accuracy:.2f} %"
    return f"{method}, seed {seed}, {summary['rounds']:.0f} rounds{tested}"


def metrics_frame(metrics: pa.Table) -> Any:
    """A table as a pandas DataFrame. Raises InputError if pandas is not installed."""
    try:
        return metrics.to_pandas()
    except ImportError as error:
        raise InputError("to_pandas needs pandas: pip install pandas; `metrics` is a pyarrow table") from error


def summarise(
    evaluated: Evaluated, parameters: int, number_bytes: int, history: list[dict[str, float]], last: int
) -> dict[str, float]:
    """The numbers of the final state of a run, by name; accuracies in [0, 1].

    In regression `test_rmse_last`, `test_mae_last` and `test_r2_last` are the final model's, and there is no accuracy.
    `test_accuracy` and `test_accuracy_std` are mean and population standard deviation over the `last`
    evaluations, `test_accuracy_last` is the final model's, `test_accuracy_best_validation` that of the
    round that did best on the clients' validation samples, if they have any.
    """
    vector_bytes = parameters * number_bytes
    values: dict[str, float] = {"rounds": len(history), "parameters": parameters, "vector_bytes": vector_bytes}
    values |= _tested(history, last, vector_bytes) | evaluated.final_scores()
    loss = values.pop("train_loss")
    values |= {name: history[-1].get(name, nan) for name in ("gradients", "bytes_down", "bytes_up", "drift")}
    return values | {"train_loss": loss, "seconds": sum(row["seconds"] for row in history)}


def _tested(history: list[dict[str, float]], last: int, vector_bytes: int) -> dict[str, float]:
    """What the evaluations on the test set come to; nothing if there were none."""
    curve = AccuracyCurve.of(history, vector_bytes)
    tested = next((row for row in reversed(history) if "test_loss" in row), {})
    other = {f"{name}_last": value for name, value in tested.items() if name.startswith("test_")}
    if not len(curve.rounds):
        return other
    mean, std = curve.last(last)
    values = {
        "test_accuracy": mean,
        "test_accuracy_std": std,
        "test_accuracy_evaluations": min(last, len(curve.rounds)),
        "test_accuracy_last": curve.final,
        "test_loss_last": [row["test_loss"] for row in history if "test_loss" in row][-1],
    }
    values |= {name: value for name, value in other.items() if name not in values}
    if best := curve.best_on_validation():
        values |= {"best_validation_round": best[0], "test_accuracy_best_validation": best[1]}
    return values
