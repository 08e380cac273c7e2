"""The HTML page of comparisons: headline, table, figures, settings, versions. No script; the page loads nothing."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import InputError, printable
from ..core.task import CROSS_ENTROPY, LOSSES
from ..data.partition_statistics import PartitionStatistics
from ..experiments.run_directory import StoredRun
from ..files import read_bytes, read_json
from ..methods import all_methods
from ..rounds.cost import FULL, UNCOMPRESSED, compared_messages
from ..rounds.segments import versions
from . import by_client_and_class, curves, figures, flatness, run_settings
from .columns import caption, columns, target_columns
from .comparison_data import ComparisonData, FinishedRun, Row
from .html_page import write_html
from .published import published_lines
from .tables import csv_text, headline, latex_table

PICTURE_BYTES = 2**24  # most bytes of a picture of loss surfaces
PARTITIONS = 6  # most partitions that are drawn
PACKAGES = ("fedflat", "torch")  # whose versions the page names
LONGEST = 60  # most characters of a version, commit or day
WEIGHTS = {"uniform": "equal", "samples": "by their number of samples"}  # of clients in the mean
_PLAIN = re.compile(r"[\w.+:-]+")


@dataclass(frozen=True)
class Chapter:
    """One comparison on a page."""

    comparison: ComparisonData
    title: str | None = None  # default: number of methods, and the data
    notes: Sequence[str] = ()  # shown before the table
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
        data = {run_settings.data_in_words(run.settings["data"]) for run in self.comparison.runs}
        return f"{what} on {data.pop()}" if len(data) == 1 else what


def write_page(chapters: Sequence[Chapter], path: Path, title: str | None = None) -> Path:
    """Write one page with all `chapters` to `path`, atomically. Raises InputError if it cannot be written."""
    known = all_methods()
    labels = (row.runs[0].method for chapter in chapters for row in chapter.comparison.rows)
    methods = dict.fromkeys(name for label in labels for name in label.split("-"))  # SWA-FedSAM has two papers
    return write_html(
        path, "page.html.j2",
        title=title or chapters[0].heading,
        chapters=[_content(chapter) for chapter in chapters],
        papers={name: known[name].paper for name in methods if name in known},
        origin=origin(run for chapter in chapters for run in chapter.comparison.runs),
    )  # fmt: skip


def _content(chapter: Chapter) -> dict[str, Any]:
    """Return the values of a chapter for the template."""
    comparison = chapter.comparison
    partitions = _partitions(comparison)  # first: reading these files may raise
    targets = [target_columns(comparison, place) for place in range(len(comparison.targets))]
    return {
        "heading": chapter.heading,
        "headline": headline(comparison),
        "notes": [*chapter.notes, *comparison.notes],
        "comparison": comparison,
        "caption": caption(comparison),
        "columns": columns(comparison),
        "targets": [cells for cells in targets if cells],
        "published": published_lines(comparison),
        "latex": latex_table(comparison),
        "csv": csv_text(comparison),
        "smoothing": curves.smoothing_in_words(curves.window_of(comparison)),
        "accuracy": curves.svgs(curves.accuracy_curves(comparison)),
        "by_method": curves.by_method(comparison),
        "losses": curves.svgs(curves.loss_curves(comparison)),
        "loss": " or ".join(dict.fromkeys(_loss(run.settings["loss"]) for run in comparison.runs)),
        "aggregation": curves.svgs(curves.aggregation_curves(comparison)),
        "costs": curves.svgs(curves.cost_curves(comparison)),
        "differences": figures.differences(comparison),
        "partitions": partitions,
        "settings": _settings(comparison),
        "methods": {row.label: _own_settings(row, comparison) for row in comparison.rows},
        "classes": by_client_and_class.class_table(comparison),
        "clients": by_client_and_class.client_tables(comparison),
        "worst": by_client_and_class.worst_tenths(comparison),
        "surfaces": [
            (printable(path.stem), b64encode(read_bytes(path, PICTURE_BYTES)).decode()) for path in chapter.surfaces
        ],
        "flatness": {
            "columns": flatness.flatness_columns(comparison),
            "errors": flatness.ERRORS,
            "protocols": flatness.protocols(comparison),
            "curves": [(curve.title, curve.svg()) for curve in flatness.curve_figures(comparison)],
            "correlations": flatness.correlations(comparison),
            "caution": flatness.CAUTION,
            "most_bands": figures.MOST_BANDS,
        },
    }


def _loss(name: str) -> str:
    """Return a loss in words; one that is not in the table is a function of the user's own."""
    return LOSSES[name].form.loss if name in LOSSES else "loss"


def _partitions(comparison: ComparisonData) -> list[dict[str, Any]]:
    """Return for at most `PARTITIONS` partitions a map of samples by client and class, and the statistics."""
    first: dict[str, FinishedRun] = {}
    for run in comparison.runs:
        first.setdefault(run_settings.data_in_words(run.settings["data"]), run)
    return [
        {
            "map": figures.partition_map(run.counts, name, on_a_page=True),
            "has_classes": run.counts.shape[1] > 1,
            "seed": run.seed,
            "facts": PartitionStatistics(**run.settings["split"]).lines(),
        }
        for name, run in list(first.items())[:PARTITIONS]
    ]


def _settings(comparison: ComparisonData) -> dict[str, str]:
    """Return the settings of all runs in words, by name; where runs differ, all values."""
    runs = comparison.runs
    hashes = {(run.seed, run.settings["partition_hash"]) for run in runs}
    texts = {
        "data": [run_settings.data_in_words(run.settings["data"]) for run in runs],
        "partition hash by seed": [", ".join(f"{seed}: {text}" for seed, text in sorted(hashes))],
        "model": [run_settings.model_in_words(run.settings["model"]) for run in runs],
        "loss": [run.settings["loss"] for run in runs if run.settings["loss"] != CROSS_ENTROPY.loss],
        "rounds": [f"{int(run.summary['rounds'])}" for run in runs],
        "participation": [run_settings.participation_in_words(run.settings["participation"]) for run in runs],
        "differential privacy": [_privacy(run) for run in runs],
        "weights of clients": [WEIGHTS.get(run.settings["weights"], run.settings["weights"]) for run in runs],
        "local training": [run_settings.training_in_words(run.settings["client"]) for run in runs],
        "options of the perturbation": [run_settings.fields_in_words(run.settings.get("perturbation")) for run in runs],
        "augmentation in training": [run_settings.augmentation_in_words(run.settings["augmentation"]) for run in runs],
        "compression of messages": [run_settings.fields_in_words(run.settings.get("compress")) for run in runs],
        "sent by a client in a round": [_message(run) for run in runs],
        "guard": [run_settings.fields_in_words(run.settings["guard"]) for run in runs],
        "attack": [run_settings.fields_in_words(run.settings["attack"]) for run in runs],
        "seeds": [", ".join(map(str, comparison.seeds))],
        "executor": [run.settings["executor"] for run in runs],
        "precision of training": [run.settings["precision"] for run in runs],
    }
    shown = {name: list(dict.fromkeys(filter(None, values))) for name, values in texts.items()}
    return {name: " | ".join(values) for name, values in shown.items() if values}


def _message(run: FinishedRun) -> str:
    """Compare the size of a client's message with that without an adapter or compression; return "" without both."""
    sent, full = (run.summary.get(name) for name in ("message_bytes", "message_bytes_full"))
    of = FULL if run.settings["adapter"] else UNCOMPRESSED
    return "" if sent is None or full is None else compared_messages(sent, full, of)


def _privacy(run: FinishedRun) -> str:
    """Return the privacy guarantee of a run, or an empty text for a run without differential privacy."""
    if "epsilon" not in run.summary:
        return ""
    added, replaced, delta, noise = (
        run.summary[name] for name in ("epsilon", "epsilon_replace_one", "delta", "noise_multiplier")
    )
    seeded = "" if run.settings["privacy"]["noise"] == "system" else "; NOT PRIVATE: the noise is the seed's"
    return (f"ε = {added:.3g} for one client added or removed, {replaced:.3g} for one replaced, δ = {delta:g}; "
            f"noise {noise:g} clips{seeded}")  # fmt: skip


def _own_settings(row: Row, comparison: ComparisonData) -> list[str]:
    """Return a row's hyper-parameters, and its local training if that differs between runs."""
    settings = row.runs[0].settings
    differs = any(run.settings["client"] != settings["client"] for run in comparison.runs)
    training = run_settings.training_in_words(settings["client"]) if differs else ""
    return [*filter(None, [run_settings.fields_in_words(settings["method"]), training])]


def origin(runs: Iterable[FinishedRun]) -> list[str]:
    """Return lines with versions, commits and days, e.g. "fedflat 0.1.0, torch 2.6.0", "commit 1a2b3c4".

    For runs in a folder, these are read from env.json; damaged or missing entries are left out. Runs without a folder
    were computed by this process, and get its versions.
    """
    segments = [segment for run in runs for segment in _segments(run)]
    packages = []
    for package in PACKAGES:
        known = _known(segment.get("versions", {}).get(package) for segment in segments)
        packages += [f"{package} {' and '.join(known)}"] if known else []
    lines = [", ".join(packages)] if packages else []
    commits = _known(segment.get("commit") for segment in segments)
    lines += [f"commit {' and '.join(commits)}"] if commits else []
    days = _known(str(segment.get("started"))[:10] for segment in segments if segment.get("started"))
    lines += [f"computed on {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")] if days else []
    return lines


def _segments(run: FinishedRun) -> list[dict[str, Any]]:
    """Return the entries of env.json, one for each start of the run; none if the file is damaged."""
    if not isinstance(run, StoredRun):
        return [{"versions": versions(PACKAGES)}]
    try:
        content = read_json(run.directory.checksums.check("env.json"))
    except InputError:
        return []
    segments = content if isinstance(content, list) else []
    return [part for part in segments if isinstance(part, dict) and isinstance(part.get("versions", {}), dict)]


def _known(texts: Iterable[object]) -> list[str]:
    """Return the different texts that look like a version, a commit or a day, sorted."""
    return sorted({text for text in texts if isinstance(text, str) and len(text) <= LONGEST and _PLAIN.fullmatch(text)})
