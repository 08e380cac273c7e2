"""One self-contained HTML page: the table, the figures, the settings. No script, nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..core.citation import Citation
from ..core.errors import InputError
from ..files import write_atomically
from ..methods import all_methods
from . import figures
from .columns import columns
from .comparison import Comparison


def write_page(comparison: Comparison, path: Path) -> Path:
    """Write the page to `path`, atomically. Raises ValueError if it cannot be written."""
    text = page(comparison)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write_text(text))
    except OSError as error:
        raise InputError(f"report {path} cannot be written: {error.strerror}") from error
    return path


def page(comparison: Comparison) -> str:
    """The page as text."""
    environment = Environment(loader=PackageLoader("fedflat.reports"), autoescape=True, undefined=StrictUndefined)
    first = comparison.runs[0]
    return environment.get_template("page.html.j2").render(
        comparison=comparison,
        columns=columns(comparison),
        curves=figures.accuracy_curves(comparison),
        differences=figures.differences(comparison),
        partition=figures.partition_map(first.counts, f"{first.settings['data']}"),
        settings=_settings(comparison),
        papers=_papers(comparison),
        smoothed_over=figures.SMOOTHED_OVER,
    )


def _settings(comparison: Comparison) -> dict[str, Any]:
    """What all runs share, in the order a reader asks."""
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
        "seeds": ", ".join(map(str, comparison.seeds)),
        "executor": settings["executor"],
    }


def _papers(comparison: Comparison) -> dict[str, Citation]:
    """The citation of every method of the package that was compared."""
    known = all_methods()
    names = dict.fromkeys(row.runs[0].method for row in comparison.rows)
    return {name: known[name].paper for name in names if name in known}
