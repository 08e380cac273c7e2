"""Recall of each class in a report, accuracy and recall of each client, and the worst tenth of the clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..experiments.statistics import MeanEstimate
from ..metrics.by_client import ClientScores
from .comparison_data import ComparisonData, Row
from .text_table import NOTHING

RECALL = re.compile(r"test_recall/(.+)_last")
SHOWN = 40  # clients in a table; of more, the worst are shown
CLASSES = 30  # in a table of recall


_Values = Callable[[ClientScores], Sequence[float | None]]


@dataclass(frozen=True)
class TextCells:
    """A table of texts."""

    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]


def class_table(comparison: ComparisonData) -> TextCells | None:
    """Return the recall of each class by each method; None if it was not measured, or of more than 30 classes."""
    names = [name for name in comparison.rows[0].estimates if RECALL.fullmatch(name)]
    if not 0 < len(names) <= CLASSES:
        return None
    cells = [[row.label, *(_of_seeds(row.estimates.get(name)) for name in names)] for row in comparison.rows]
    caption = "Share of the test samples of each class that the final model recognises, %: mean over seeds"
    spread = " ± sample standard deviation" if len(comparison.seeds) > 1 else ""
    return TextCells(f"{caption}{spread}.", ["method", *(RECALL.fullmatch(name)[1] for name in names)], cells)  # type: ignore[index]


def _of_seeds(estimate: MeanEstimate | None) -> str:
    if estimate is None:
        return NOTHING
    return _percent(estimate.mean) + ("" if estimate.std is None else f" ± {100 * estimate.std:.1f}")


def client_tables(comparison: ComparisonData) -> list[TextCells]:
    """Return the accuracy of every method at each client, then for each method the recall of classes by client.

    The list is empty unless all runs have scores of clients.
    """
    rows = [row for row in comparison.rows if all(run.clients is not None for run in row.runs)]
    if len(rows) < len(comparison.rows) or not rows:
        return []
    return [_accuracies(rows), *(table for row in rows if (table := _recall(row)) is not None)]


def worst_tenths(comparison: ComparisonData) -> list[str]:
    """Return for each method in words which clients are the worst tenth, most often over the seeds first."""
    lines = []
    for row in comparison.rows:
        found = [run.clients.worst_tenth() for run in row.runs if run.clients is not None]
        names = sorted({name for names in found for name in names},
                       key=lambda name: (-sum(name in names for names in found), name))  # fmt: skip
        if names:
            shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            lines.append(f"{row.label}: {shown}")
    return lines


def _accuracies(rows: Sequence[Row]) -> TextCells:
    """Return the table of accuracies; of many clients, those with the lowest mean over the methods are shown."""
    columns: list[tuple[str, Mapping[str, float]]] = []
    for row in rows:
        of_server = _means(row, lambda scores: scores.accuracy)
        of_clients = _means(row, lambda scores: scores.personal_accuracy)
        columns += [(row.label, of_server)] if of_server else []
        columns += [(f"{row.label}, own models", of_clients)] if of_clients else []
    samples = {name: n for row in rows for name, n in _means(row, lambda scores: scores.samples).items()}
    shown = _shown(samples, columns)
    cells = [[name, f"{samples[name]:.0f}", *(_percent(some.get(name)) for _, some in columns)] for name in shown]
    part = f" The {SHOWN} with the lowest mean, of {len(samples)}." if len(samples) > SHOWN else ""
    caption = f"Accuracy of the final model on the test samples of each client, %, mean over seeds.{part}"
    return TextCells(caption, ["client", "test samples", *(title for title, _ in columns)], cells)


def _recall(row: Row) -> TextCells | None:
    """Return the table of recall of one method; None if recall was not measured."""
    classes = list(row.runs[0].clients.recall) if row.runs[0].clients is not None else []
    if not classes or len(classes) > CLASSES:
        return None
    columns = [(name, _means(row, lambda scores, name=name: scores.recall[name])) for name in classes]  # type: ignore[misc]
    samples = _means(row, lambda scores: scores.samples)
    shown = _shown(samples, [("", _means(row, lambda scores: scores.personal_accuracy or scores.accuracy))])
    cells = [[name, *(_percent(some.get(name)) for _, some in columns)] for name in shown]
    caption = f"{row.label}: recall of each class at each client, %, mean over seeds; –: no test sample of the class."
    return TextCells(caption, ["client", *classes], cells)


def _means(row: Row, values_of: _Values) -> dict[str, float]:
    """Return the mean over seeds of a list of `ClientScores`, by client, without clients that have no value."""
    found: dict[str, list[float]] = {}
    for run in row.runs:
        scores = run.clients
        if scores is None:
            continue
        names = scores.name or [str(client) for client in scores.client]
        for name, value in zip(names, values_of(scores), strict=False):  # without values of this kind: none
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _shown(samples: Mapping[str, float], columns: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    """Return the names of the clients to show: all in their order, or of many the worst ones."""
    if len(samples) <= SHOWN:
        return list(samples)
    mean = {name: np.mean([some[name] for _, some in columns if name in some] or [1.0]) for name in samples}
    return sorted(samples, key=lambda name: (mean[name], name))[:SHOWN]


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"
