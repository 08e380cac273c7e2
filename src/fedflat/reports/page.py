"""One self-contained HTML page: a sentence, the table, the figures, the settings. No script; nothing is loaded."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import printable
from ..core.task import CROSS_ENTROPY
from ..data.partition_statistics import PartitionStatistics
from ..files import make_folder, read_bytes, write_atomically
from ..methods import all_methods
from ..rounds.cost import compared_messages
from . import curves, figures, flatness, wording
from .columns import caption, columns, target_columns
from .comparison_data import ComparisonData, FinishedRun, Row
from .export import csv_text, environment, latex_table
from .headline import headline
from .origin import origin
from .published_table import published_lines

PICTURE_BYTES = 2**24  # of a picture of loss surfaces, at most
PARTITIONS = 6  # that are drawn


@dataclass(frozen=True)
class Chapter:
    """One comparison on a page."""

    comparison: ComparisonData
    title: str | None = None  # default: how many methods, on which data
    notes: Sequence[str] = ()  # what a reader should know, before the table
    surfaces: Sequence[Path] = ()  # pictures of loss surfaces (SVG files), shown as images

    @property
    def heading(self) -> str:
        if self.title:
            return self.title
        rows = len(self.comparison.rows)
        methods = len({run.method for run in self.comparison.runs})
        what = (
            f"{rows} variants of {methods} methods"
            if rows > methods > 1
            else f"{rows} {'method' if rows == 1 else 'methods'}"
        )
        data = {wording.data_in_words(run.settings["data"]) for run in self.comparison.runs}
        return f"{what} on {data.pop()}" if len(data) == 1 else what


def write_page(chapters: Sequence[Chapter], path: Path, title: str | None = None) -> Path:
    """Write one page with all `chapters` to `path`, atomically. Raises InputError if it cannot be written."""
    known = all_methods()
    labels = (row.runs[0].method for chapter in chapters for row in chapter.comparison.rows)
    methods = dict.fromkeys(name for label in labels for name in label.split("-"))  # SWA-FedSAM has two papers
    text = (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title or chapters[0].heading,
            chapters=[_content(chapter) for chapter in chapters],
            papers={name: known[name].paper for name in methods if name in known},
            origin=origin(run for chapter in chapters for run in chapter.comparison.runs),
        )
    )
    make_folder(path.parent)
    write_atomically(path, lambda file: file.write_text(text))
    return path


def _content(chapter: Chapter) -> dict[str, Any]:
    """What the template shows of a chapter."""
    comparison = chapter.comparison
    partitions = [_partition(run) for run in _first_of_each_partition(comparison)]  # first, as these files may be bad
    targets = [target_columns(comparison, place) for place in range(len(comparison.targets))]
    return {
        "heading": chapter.heading,
        "headline": headline(comparison),
        "notes": [*chapter.notes, *comparison.notes],
        "comparison": comparison,
        "caption": caption(comparison),
        "columns": columns(comparison),
        "targets": [some for some in targets if some],
        "published": published_lines(comparison),
        "latex": latex_table(comparison),
        "csv": csv_text(comparison),
        "smoothing": curves.smoothing_in_words(curves.window_of(comparison)),
        "accuracy": curves.accuracy_curves(comparison),
        "losses": curves.loss_curves(comparison),
        "aggregation": curves.aggregation_curves(comparison),
        "costs": curves.cost_curves(comparison),
        "differences": figures.differences(comparison),
        "partitions": partitions,
        "settings": _settings(comparison),
        "methods": {row.label: _own_settings(row, comparison) for row in comparison.rows},
        "surfaces": [
            (printable(path.stem), b64encode(read_bytes(path, PICTURE_BYTES)).decode()) for path in chapter.surfaces
        ],
        "flatness": {
            "columns": flatness.flatness_columns(comparison),
            "errors": flatness.ERRORS,
            "protocols": flatness.protocols(comparison),
            "curves": flatness.curve_figures(comparison),
            "correlations": flatness.correlations(comparison),
            "caution": flatness.CAUTION,
        },
    }


def _first_of_each_partition(comparison: ComparisonData) -> list[FinishedRun]:
    """The first run on each kind of partition."""
    found: dict[str, FinishedRun] = {}
    for run in comparison.runs:
        found.setdefault(wording.data_in_words(run.settings["data"]), run)
    return list(found.values())[:PARTITIONS]


def _partition(run: FinishedRun) -> dict[str, Any]:
    """A map of who holds what, and its numbers."""
    name = wording.data_in_words(run.settings["data"])
    return {
        "map": figures.partition_map(run.counts, name, on_a_page=True),
        "seed": run.seed,
        "facts": PartitionStatistics(**run.settings["split"]).lines(),
    }


def _settings(comparison: ComparisonData) -> dict[str, str]:
    """The settings of all runs, in words; where runs differ, each value that there is."""
    runs = comparison.runs
    hashes = {(run.seed, run.settings["partition_hash"]) for run in runs}
    texts = {
        "data": [wording.data_in_words(run.settings["data"]) for run in runs],
        "partition hash by seed": [", ".join(f"{seed}: {text}" for seed, text in sorted(hashes))],
        "model": [wording.model_in_words(run.settings["model"]) for run in runs],
        "loss": [_unusual(run.settings["loss"]) for run in runs],
        "rounds": [f"{int(run.summary['rounds'])}" for run in runs],
        "participation": [wording.participation_in_words(run.settings["participation"]) for run in runs],
        "differential privacy": [_privacy(run) for run in runs],
        "weights of clients": [wording.weights_in_words(run.settings["weights"]) for run in runs],
        "local training": [wording.training_in_words(run.settings["client"]) for run in runs],
        "augmentation in training": [wording.augmentation_in_words(run.settings["augmentation"]) for run in runs],
        "sent by a client in a round": [_message(run) for run in runs],
        "guard": [wording.fields_in_words(run.settings["guard"]) for run in runs],
        "attack": [wording.fields_in_words(run.settings["attack"]) for run in runs],
        "seeds": [", ".join(map(str, comparison.seeds))],
        "executor": [run.settings["executor"] for run in runs],
        "precision of training": [run.settings["precision"] for run in runs],
    }
    shown = {name: list(dict.fromkeys(filter(None, some))) for name, some in texts.items()}
    return {name: " | ".join(some) for name, some in shown.items() if some}


def _unusual(loss: str) -> str:
    """Return a loss; for the one that most runs have, nothing."""
    return "" if loss == CROSS_ENTROPY.loss else loss


def _message(run: FinishedRun) -> str:
    """With an adapter, how much a client sends, beside full fine-tuning; otherwise empty."""
    sent, full = (run.summary.get(name) for name in ("message_bytes", "message_bytes_full"))
    return "" if sent is None or full is None else compared_messages(sent, full)


def _privacy(run: FinishedRun) -> str:
    """What a private run promises; otherwise empty."""
    if "epsilon" not in run.summary:
        return ""
    one, replaced, delta, noise = (
        run.summary[name] for name in ("epsilon", "epsilon_replace_one", "delta", "noise_multiplier")
    )
    seeded = "" if run.settings["privacy"]["noise"] == "system" else "; NOT PRIVATE: the noise is the seed's"
    return (f"ε = {one:.3g} for one client added or removed, {replaced:.3g} for one replaced, δ = {delta:g}; "
            f"noise {noise:g} clips{seeded}")  # fmt: skip


def _own_settings(row: Row, comparison: ComparisonData) -> list[str]:
    """A row's hyper-parameters, and its local training where that is not the same for all."""
    settings = row.runs[0].settings
    differs = any(run.settings["client"] != settings["client"] for run in comparison.runs)
    training = wording.training_in_words(settings["client"]) if differs else ""
    return [*filter(None, [wording.fields_in_words(settings["method"]), training])]
