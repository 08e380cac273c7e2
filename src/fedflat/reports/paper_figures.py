"""Figures for papers: PDF and SVG files whose names say what they show, and the table in LaTeX."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..core.errors import InputError
from ..files import make_folder, write_atomically, write_text
from .columns import measure_title
from .comparison_data import ComparisonData, Row, score_of
from .curves import accuracy_curves, aggregation_curves, cost_curves, loss_curves
from .figures import INK, End, draw_differences, with_difference
from .flatness import curve_figures, measured
from .paper_style import FONT_SIZE, HEIGHTS, LEGEND_LINE, LEGEND_SIZE, PAPER, WIDTHS, entries_across, paper_styles
from .tables import latex_table

FORMATS = ("pdf", "svg")
TABLE = "table.tex"
LONGEST = 80  # characters of a file's name before the size
ROW = 0.19  # height of a row with a point, in inches


@dataclass(frozen=True)
class PaperFigure:
    """One figure, drawn in any size."""

    name: str  # of its file
    rows: Sequence[Row]  # with a line
    draw: Callable[[Axes, Sequence[dict[str, Any]]], Sequence[End]]  # returns the lines for the legend
    points: int = 0  # rows with a point; 0 for curves

    def content(self, size: str, kind: str) -> bytes:
        """Return the figure as a file of the `kind`; the same figure always gives the same bytes."""
        buffer = io.BytesIO()
        facts = {"pdf": {"CreationDate": None, "Title": self.name}, "svg": {"Date": None, "Title": self.name}}
        with rc_context(PAPER), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # names of data may be in any script
            self._drawn(size).savefig(buffer, format=kind, metadata=facts[kind])
        return buffer.getvalue()

    def _drawn(self, size: str) -> Figure:
        height = 0.6 + ROW * self.points if self.points else HEIGHTS[size]
        figure = Figure(figsize=(WIDTHS[size], height), layout="constrained")
        axes: Axes = figure.subplots()
        if ends := self.draw(axes, paper_styles(self.rows)):
            _add_legend(figure, ends, size)
        if self.points:  # the labels of rows may leave little room for the axes, and the label is wider than these
            figure.supxlabel(axes.get_xlabel(), fontsize=FONT_SIZE)
            axes.set_xlabel("")
        return figure


def _add_legend(figure: Figure, ends: Sequence[End], size: str) -> None:
    """Write the labels of the lines below the axes, and make the figure higher by as much."""
    labels = [label for *_, label, _ in ends]
    across = entries_across(labels, size)
    samples = [Line2D([], [], **(style | {"markevery": None})) for *_, style in ends]
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * -(-len(labels) // across))
    figure.legend(samples, labels, loc="outside lower center", ncols=across, fontsize=LEGEND_SIZE, frameon=False,
                  handlelength=3.2, columnspacing=1.0, labelspacing=0.3)  # fmt: skip


def paper_figures(comparison: ComparisonData) -> dict[str, PaperFigure]:
    """Return all figures that these runs have, by name; those of several tasks have the task in their names."""
    named: dict[str, PaperFigure] = {}
    for figure in _figures(comparison):
        name, number = file_name(figure.name), 1
        while name in named:
            number += 1
            name = f"{file_name(figure.name)}-{number}"
        named[name] = replace(figure, name=name)
    return named


def file_name(text: str) -> str:
    """Return the name of a file for a text: small letters, digits, dots and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:LONGEST].strip("-.")


def _figures(comparison: ComparisonData) -> Iterator[PaperFigure]:
    """Yield curves against rounds and costs, differences, and measures of flatness."""
    own = replace(comparison, targets=comparison.targets if comparison.has_own_targets else ())
    for of_runs in (accuracy_curves, loss_curves, aggregation_curves, cost_curves):
        for curve in of_runs(own):
            yield PaperFigure(f"{curve.name} {curve.task}", curve.rows, curve.draw)
    for measure in curve_figures(comparison):
        yield PaperFigure(f"{measure.name} curve {measure.task}", measure.rows, measure.draw)
    if pairs := with_difference(comparison):
        name = f"{score_of(comparison.runs[0]).removeprefix('test_')} differences"
        yield PaperFigure(name, (), partial(_differences, comparison), len(pairs))
    for name in measured(comparison):
        rows = [row for row in comparison.rows if isfinite(row.estimates[name].mean)]
        if rows:
            yield PaperFigure(name, (), partial(_values, rows, name), len(rows))


def _differences(comparison: ComparisonData, axes: Axes, styles: Sequence[dict[str, Any]]) -> Sequence[End]:
    draw_differences(axes, comparison)
    return ()


def _values(rows: Sequence[Row], name: str, axes: Axes, styles: Sequence[dict[str, Any]]) -> Sequence[End]:
    """Draw a measure of flatness of each row with its error."""
    for place, row in enumerate(reversed(rows)):
        error = _error(row, name)
        axes.errorbar(row.estimates[name].mean, place, xerr=error, fmt="o", color=INK, markersize=3.5, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [row.label for row in reversed(rows)])
    axes.set(xlabel=measure_title(name), ylim=(-0.6, len(rows) - 0.4))
    return ()


def _error(row: Row, name: str) -> float | None:
    """Return the standard deviation over seeds, or the measure's own error of a single seed; None if not finite."""
    error = row.runs[0].flatness[name].error if len(row.runs) == 1 else row.estimates[name].std
    return error if error is not None and isfinite(error) else None


def write_figure(comparison: ComparisonData, path: Path, show: str | None, size: str) -> Path:
    """Write the figure called `show`, by default as the file, in the format of the file's extension.

    Raises InputError for another extension, an unknown size, a figure that these runs do not have, or a file that
    cannot be written.
    """
    kind, name, figures = path.suffix.lower().removeprefix("."), show or path.stem, paper_figures(comparison)
    if kind not in FORMATS:
        raise InputError(f"path: {path.name!r} ends in neither {' nor '.join(f'.{known}' for known in FORMATS)}")
    if size not in WIDTHS:
        raise InputError(f"size = {size!r} is unknown; known are {', '.join(WIDTHS)}")
    if name not in figures:
        raise InputError(f"show: these runs have no figure {name!r}; they have {', '.join(figures)}")
    make_folder(path.parent)
    _write(path, figures[name].content(size, kind))
    return path


def write_for_paper(comparison: ComparisonData, folder: Path, columns: Sequence[str] | None = None) -> list[Path]:
    """Write every figure in every size and format, and the table in LaTeX, to `folder`; return the paths.

    columns: titles of the table's columns, as `latex_table` takes them.
    Raises InputError, before anything is written, for an unknown column; and if a file cannot be written.
    """
    table, written = latex_table(comparison, columns), [folder / TABLE]
    make_folder(folder)
    write_text(folder / TABLE, table)
    for figure in paper_figures(comparison).values():
        for size in WIDTHS:
            for kind in FORMATS:
                written.append(folder / f"{figure.name}-{size}.{kind}")
                _write(written[-1], figure.content(size, kind))
    return written


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
