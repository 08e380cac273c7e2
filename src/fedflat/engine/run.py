"""A finished run: its metrics, model and summary, and the files that it is saved in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor, nn

from ..core.errors import InputError
from ..data.sample_kind import SampleKind
from ..data.types import Index
from ..files import make_folder
from ..metrics.by_client import ClientScores
from ..metrics.flatness import Finding, Flatness
from ..metrics.protocols import SCORES, AccuracyCurve, score_name
from ..rounds.checksums import Checksums
from ..rounds.cost import MethodCost
from ..rounds.run_model import save_model
from .evaluation import Evaluated, predict

OF_CLIENTS = ("client_accuracy", "client_test_", "personal_")  # beginnings of the names of metrics of clients' samples
METRICS, MODEL, SUMMARY = "metrics.parquet", "model.safetensors", "summary.json"
FLATNESS, PARTITION, VOCABULARY = "flatness.json", "partition.parquet", "vocabulary.txt"


def write_counts(checksums: Checksums, counts: Index) -> None:
    """Write the number of samples per client and class, (clients, classes)."""
    columns = {f"class_{c}": column for c, column in enumerate(counts.T)}
    checksums.write(PARTITION, partial(pq.write_table, pa.table(columns)))


def write_metrics_and_model(checksums: Checksums, run: Run) -> None:
    """Write the metrics of all rounds, and the model's parameters."""
    checksums.write(METRICS, partial(pq.write_table, run.metrics))
    checksums.write(MODEL, lambda path: save_model(path, run.model))


def write_findings(checksums: Checksums, findings: Sequence[Finding]) -> None:
    """Write the results of measures of flatness."""
    write_json(checksums, FLATNESS, [asdict(finding) for finding in findings])


def write_summary(checksums: Checksums, run: Run, targets: Sequence[float] = ()) -> None:
    """Write the summary, the last file of a run, which marks the run as finished.

    targets: accuracies; for each target, the file has the round and the cost at which the accuracy reached the target,
    and the same for the smoothed accuracy.
    """
    reports = []
    for target in targets:
        curve = AccuracyCurve.of(run.metrics.to_pylist(), run.summary["vector_bytes"])
        costs = {"plain": curve.reached(target), "smoothed": curve.reached(target, smooth=True)}
        reports.append({"accuracy": target} | {name: cost and vars(cost) for name, cost in costs.items()})
    content = {"summary": run.summary, "targets": reports, "settings": run.settings, "cost": vars(run.cost)}
    if run.clients is not None:
        content["clients"] = asdict(run.clients)
    content["samples"] = run.samples.stated
    write_json(checksums, SUMMARY, content | {"architecture": run.architecture})


def write_json(checksums: Checksums, name: str, content: object) -> None:
    """Write a JSON file."""
    write_text(checksums, name, json.dumps(content, indent=2))


def write_text(checksums: Checksums, name: str, text: str) -> None:
    """Write a text file that ends with a line feed."""
    checksums.write(name, lambda path: path.write_bytes(f"{text}\n".encode()))


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
    flatness: Flatness  # measures of the final model; empty if none was requested
    samples: SampleKind  # the kind of samples that the model takes
    # How `fedflat.models.build` makes the module: name, options, classes, shape, dtype; None if a module was given.
    architecture: dict[str, Any] | None = None
    clients: ClientScores | None = None  # by client, if clients have test samples of their own

    def __repr__(self) -> str:
        """Return method, seed, rounds and accuracy in brief."""
        return f"Run({short_description(self.method, self.seed, self.summary)})"

    def predict(self, x: Any, classes: bool = False) -> Tensor:
        """Compute the scores (n, k) of samples `x` (n, *shape), or with `classes` the class of each, int64 (n,).

        If each position of a sample has a label, scores are (n, tokens, k) or (n, k, height, width), and each position
        has a class.

        x: samples as they were given for training, before any scaling: an array, a tensor, a list of pictures or
        texts, or a dataset, whose labels are ignored; of a run on tables of csv or jsonl files, a table with their
        columns, which is encoded as they were. In a multi-label task `classes` are 0 and 1 (n, k); a
        regression has none. The scores are computed in batches on the model's device, in evaluation mode; the result is
        on the CPU.

        Raises InputError for another shape or kind of numbers (uint8, integers, floats) than in training.
        """
        return predict(self.model, self.samples, x, classes)

    def save(self, folder: str | Path) -> None:
        """Write metrics, model, summary and measures into a new folder, which `fedflat.load_run` and reports read.

        For a model that was given as a module, only the parameters are saved:
        `fedflat.load_run(folder).load_into(module)` loads them into another module. Data are not saved, so the run can
        be neither continued nor measured.

        Raises InputError if the folder holds anything or cannot be written.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists already; a run needs a new folder")
        make_folder(folder)
        checksums = Checksums(folder)
        write_counts(checksums, self.counts)
        if self.samples.vocabulary:
            write_text(checksums, VOCABULARY, "\n".join(self.samples.vocabulary))
        write_metrics_and_model(checksums, self)
        if self.flatness.findings:
            write_findings(checksums, self.flatness.findings)
        write_summary(checksums, self)

    def to_pandas(self) -> Any:
        """Return `metrics` as a pandas DataFrame. Raises InputError if pandas is not installed."""
        return metrics_frame(self.metrics)


def short_description(method: str, seed: int, summary: Mapping[str, float]) -> str:
    """Describe a run in brief, such as `FedSAM, seed 0, 50 rounds, test accuracy 91.20 %`."""
    score = score_name(summary)
    tested = "" if score is None else f", {SCORES[score].title} {SCORES[score].text(summary[score])}"
    return f"{method}, seed {seed}, {summary['rounds']:.0f} rounds{tested}"


def metrics_frame(metrics: pa.Table) -> Any:
    """Return a table as a pandas DataFrame. Raises InputError if pandas is not installed."""
    try:
        return metrics.to_pandas()
    except ImportError as error:
        raise InputError("to_pandas needs pandas: pip install pandas; `metrics` is a pyarrow table") from error


def summarise(
    evaluated: Evaluated, parameters: int, number_bytes: int, history: list[dict[str, float]], last: int
) -> dict[str, float]:
    """Return the metrics of the final state of a run, by name; accuracies are in [0, 1].

    `test_accuracy` and `test_accuracy_std` are mean and population standard deviation over the `last` evaluations.
    `test_accuracy_last` is the accuracy of the final model. `test_accuracy_best_validation` is the test accuracy of the
    round with the best accuracy on the clients' validation samples, if there are any. In other tasks the score of the
    task stands in for `test_accuracy`: `test_r2`, `test_perplexity` or `test_mean_iou`; `test_rmse_last`,
    `test_mse_last` and `test_mae_last` are those of the final model.
    """
    vector_bytes = parameters * number_bytes
    values: dict[str, float] = {"rounds": len(history), "parameters": parameters, "vector_bytes": vector_bytes}
    values |= _tested(history, last, vector_bytes) | evaluated.final_scores()
    loss = values.pop("train_loss")
    values |= {name: history[-1].get(name, nan) for name in ("gradients", "bytes_down", "bytes_up", "drift")}
    return values | {"train_loss": loss, "seconds": sum(row["seconds"] for row in history)}


def _tested(history: list[dict[str, float]], last: int, vector_bytes: int) -> dict[str, float]:
    """Return the metrics of the evaluations on the test set, by name; empty without a test set."""
    curve = AccuracyCurve.of(history, vector_bytes)
    tested = next((row for row in reversed(history) if "test_loss" in row), {})
    other = {f"{name}_last": value for name, value in tested.items() if name.startswith("test_")}
    if not len(curve.rounds):
        return other
    mean, std = curve.last(last)
    score = score_name(tested)
    values = {
        f"{score}": mean,
        f"{score}_std": std,
        f"{score}_evaluations": min(last, len(curve.rounds)),
        f"{score}_last": curve.final,
        "test_loss_last": [row["test_loss"] for row in history if "test_loss" in row][-1],
    }
    values |= {name: value for name, value in other.items() if name not in values}
    if best := curve.best_on_validation():
        values |= {"best_validation_round": best[0], f"{score}_best_validation": best[1]}
    return values


def without_client_values(summary: Mapping[str, float]) -> dict[str, float]:
    """Remove metrics of clients' own samples from a summary; those that every summary must have are set to NaN."""
    values = {name: value for name, value in summary.items() if not name.startswith(OF_CLIENTS)}
    return values | {"train_loss": nan, "drift": nan}
