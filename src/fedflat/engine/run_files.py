"""The files of a finished run: what it measured, its model, its summary, and who held what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import InputError
from ..data.types import Index
from ..files import make_folder
from ..metrics.flatness import Finding
from ..metrics.protocols import AccuracyCurve
from ..rounds.checksums import Checksums
from ..rounds.run_model import save_model

if TYPE_CHECKING:
    from .run import Run

METRICS, MODEL, SUMMARY = "metrics.parquet", "model.safetensors", "summary.json"
FLATNESS, PARTITION, VOCABULARY = "flatness.json", "partition.parquet", "vocabulary.txt"


def save_run(run: Run, folder: Path) -> None:
    """Write all files of a finished run. Raises InputError if the folder holds anything or cannot be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; a run needs a new folder")
    make_folder(folder)
    checksums = Checksums(folder)
    write_counts(checksums, run.counts)
    if run.samples.vocabulary:
        write_text(checksums, VOCABULARY, "\n".join(run.samples.vocabulary))
    write_metrics_and_model(checksums, run)
    if run.flatness.findings:
        write_findings(checksums, run.flatness.findings)
    write_summary(checksums, run, architecture=run.architecture)


def write_counts(checksums: Checksums, counts: Index) -> None:
    """Write the samples per client and class, (clients, classes)."""
    columns = {f"class_{c}": column for c, column in enumerate(counts.T)}
    checksums.write(PARTITION, partial(pq.write_table, pa.table(columns)))


def write_metrics_and_model(checksums: Checksums, run: Run) -> None:
    """Write what every round reported, and the model's parameters."""
    checksums.write(METRICS, partial(pq.write_table, run.metrics))
    checksums.write(MODEL, lambda path: save_model(path, run.model))


def write_findings(checksums: Checksums, findings: Sequence[Finding]) -> None:
    """Write the findings of measures."""
    write_json(checksums, FLATNESS, [asdict(finding) for finding in findings])


def write_summary(
    checksums: Checksums, run: Run, targets: Sequence[float] = (), architecture: dict[str, Any] | None = None
) -> None:
    """Write the summary, which marks the run as finished and comes last.

    For each target accuracy it has the round, and the cost, at which the accuracy was reached, plain and smoothed.
    architecture: what the model is made with, for a run without config.toml.
    """
    reports = []
    for target in targets:
        curve = AccuracyCurve.of(run.metrics.to_pylist(), run.summary["vector_bytes"])
        found = {"plain": curve.reached(target), "smoothed": curve.reached(target, smooth=True)}
        reports.append({"accuracy": target} | {name: reached and vars(reached) for name, reached in found.items()})
    content = {"summary": run.summary, "targets": reports, "settings": run.settings, "cost": vars(run.cost)}
    content["samples"] = {name: value for name, value in vars(run.samples).items() if name != "vocabulary"}
    write_json(checksums, SUMMARY, content | ({} if architecture is None else {"architecture": architecture}))


def write_json(checksums: Checksums, name: str, content: object) -> None:
    """Write a JSON file."""
    write_text(checksums, name, json.dumps(content, indent=2))


def write_text(checksums: Checksums, name: str, text: str) -> None:
    """Write a text and a line feed."""
    checksums.write(name, lambda path: path.write_text(text + "\n"))
