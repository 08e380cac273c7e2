"""One self-contained HTML page: the table, the figures, the settings. No script, nothing loaded from elsewhere."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.errors import printable
from ..data.partition_statistics import PartitionStatistics
from ..files import make_folder, read_bytes, write_atomically
from ..methods import all_methods
from . import figures, flatness
from .columns import caption, columns, target_columns
from .comparison_data import ComparisonData

PICTURE_BYTES = 2**24  # of a picture of loss surfaces, at most


@dataclass(frozen=True)
class Chapter:
    """One comparison on a page."""

    comparison: ComparisonData
    title: str | None = None  # default: how many methods, on which data
    notes: Sequence[str] = ()  # what a reader should know, before the table
    surfaces: Sequence[Path] = ()  # pictures of loss surfaces (SVG files), shown as images

    @property
    def heading(self) -> str:
        comparison = self.comparison
        return self.title or f"{len(comparison.rows)} methods on {comparison.runs[0].settings['data']}"


def write_page(chapters: Sequence[Chapter], path: Path, title: str | None = None) -> Path:
    """Write one page with all `chapters` to `path`, atomically. Raises InputError if it cannot be written."""
    known = all_methods()
    methods = dict.fromkeys(row.runs[0].method for chapter in chapters for row in chapter.comparison.rows)
    environment = Environment(loader=PackageLoader("fedflat.reports"), autoescape=True, undefined=StrictUndefined)
    text = environment.get_template("page.html.j2").render(
        title=title or chapters[0].heading,
        chapters=[_content(chapter) for chapter in chapters],
        papers={name: known[name].paper for name in methods if name in known},
        smoothed_over=figures.SMOOTHED_OVER,
    )
    make_folder(path.parent)
    write_atomically(path, lambda file: file.write_text(text))
    return path


def _content(chapter: Chapter) -> dict[str, Any]:
    """What the template shows of a chapter."""
    comparison, first = chapter.comparison, chapter.comparison.runs[0]
    return {
        "heading": chapter.heading,
        "notes": [*chapter.notes, *comparison.notes],
        "comparison": comparison,
        "caption": caption(comparison),
        "columns": columns(comparison),
        "targets": [target_columns(comparison, place) for place in range(len(comparison.targets))],
        "curves": figures.accuracy_curves(comparison),
        "differences": figures.differences(comparison),
        "partition": figures.partition_map(first.counts, f"{first.settings['data']}"),
        "facts": PartitionStatistics(**first.settings["split"]).lines(),
        "settings": _settings(comparison),
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


def _settings(comparison: ComparisonData) -> dict[str, Any]:
    """The settings that all runs share, the most important ones first."""
    settings = comparison.runs[0].settings
    hashes = {run.seed: run.settings["partition_hash"] for run in comparison.runs}
    return {
        "data": settings["data"],
        "partition hash by seed": ", ".join(f"{seed}: {text}" for seed, text in sorted(hashes.items())),
        "model": settings["model"],
        "rounds": int(comparison.runs[0].summary["rounds"]),
        "participation": settings["participation"],
        "weights of clients": settings["weights"],
        "local training": settings["client"],
        "augmentation in training": settings["augmentation"],
        "seeds": ", ".join(map(str, comparison.seeds)),
        "executor": settings["executor"],
        "precision of training": settings.get("precision", "fp32"),
    }
