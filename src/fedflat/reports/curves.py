"""Training curves of all methods: accuracy and losses against rounds, and accuracy against what was spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, MaxNLocator

from .comparison_data import ComparisonData, FinishedRun, Row
from .figures import INK, STYLE, label_ends, line_styles, panel, svg, themed

MOST_SMOOTHED = 5  # evaluations
SMOOTHED_SHARE = 20  # a twentieth of the evaluations is smoothed over
HUGE = 1e30  # a loss beyond this is drawn as a gap
WIDE = 30.0  # ratio of the highest to the lowest loss from which the axis is logarithmic
Metrics = Mapping[str, Any]  # of one round, by name


@dataclass(frozen=True)
class Line:
    """One row's curve."""

    x: np.ndarray  # (n,), means over seeds
    y: np.ndarray  # (seeds, n), smoothed; NaN where nothing finite was measured


def window_of(comparison: ComparisonData) -> int:
    """Evaluations that a point of a curve is the mean of: a twentieth of the shortest run's, at most five."""
    fewest = min(len(_evaluated(run, "test_accuracy")) for run in comparison.runs)
    return max(1, min(MOST_SMOOTHED, fewest // SMOOTHED_SHARE))


def smoothing_in_words(window: int) -> str:
    """What was done to a curve."""
    return f"Each point is the mean of the last {window} evaluations" if window > 1 else "Nothing is smoothed"


def accuracy_curves(comparison: ComparisonData) -> list[str]:
    """Test accuracy against rounds, and its second half larger, as SVG."""
    lines = _lines(comparison, "test_accuracy", _rounds, 100)
    late = [
        line and Line(line.x[half:], line.y[:, half:]) for line in lines for half in [len(line.x) // 2 if line else 0]
    ]
    whole = _figure(comparison, lines, "all rounds", "test accuracy %", targets=True)
    return [whole, _figure(comparison, late, "second half", "test accuracy %")]


def loss_curves(comparison: ComparisonData) -> list[str]:
    """Test and training loss against rounds, as SVG; of each only if a run has it."""
    kinds = (("test_loss", "test loss"), ("train_loss", "training loss"))
    found = [(title, _lines(comparison, name, _rounds)) for name, title in kinds]
    return [_figure(comparison, lines, title, title) for title, lines in found if any(lines)]


def cost_curves(comparison: ComparisonData) -> list[str]:
    """Test accuracy against gradients computed and bytes sent by all clients so far, as SVG."""
    gradients = _lines(comparison, "test_accuracy", lambda row: row["gradients"], 100)
    sent = _lines(comparison, "test_accuracy", lambda row: row["bytes_down"] + row["bytes_up"], 100)
    return [
        _figure(
            comparison, gradients, "against gradients", "test accuracy %", "minibatch gradients of all clients", ""
        ),
        _figure(comparison, sent, "against bytes sent", "test accuracy %", "sent to and from all clients", "B"),
    ]


def _rounds(metrics: Metrics) -> float:
    return float(metrics["t"] + 1)


def _evaluated(run: FinishedRun, name: str) -> dict[int, Metrics]:
    """The rounds in which the metric `name` was taken."""
    if name not in run.metrics.column_names:
        return {}
    table = run.metrics.select(list(dict.fromkeys(("t", name, "gradients", "bytes_down", "bytes_up"))))
    return {row["t"]: row for row in table.to_pylist() if row[name] is not None}


def _lines(
    comparison: ComparisonData, name: str, x: Callable[[Metrics], float], factor: float = 1.0
) -> list[Line | None]:
    """The curve of each row; None for a row of which a run lacks the metric."""
    window = window_of(comparison)
    return [_line(row, name, x, factor, window) for row in comparison.rows]


def _line(row: Row, name: str, x: Callable[[Metrics], float], factor: float, window: int) -> Line | None:
    runs = [_evaluated(run, name) for run in row.runs]
    rounds = sorted(set(runs[0]).intersection(*runs[1:]))
    if not rounds:
        return None
    places = np.array([[x(run[t]) for t in rounds] for run in runs]).mean(axis=0)
    values = factor * np.array([[run[t][name] for t in rounds] for run in runs], dtype=float)
    values[~(np.abs(values) < HUGE)] = np.nan
    return Line(places, np.array([smoothed(one, window) for one in values]))


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """At each place the mean of the last `window` values, of fewer at the start; (n,)."""
    padded = np.concatenate([np.full(window - 1, np.nan), values])
    around = np.lib.stride_tricks.sliding_window_view(padded, window)
    known = np.isfinite(around)
    total, number = np.where(known, around, 0).sum(axis=1), known.sum(axis=1)
    means: np.ndarray = np.divide(total, number, out=np.full(len(values), np.nan), where=number > 0)
    means[~np.isfinite(values)] = np.nan
    return means


def _figure(
    comparison: ComparisonData,
    lines: Sequence[Line | None],
    title: str,
    y_label: str,
    x_label: str = "communication round",
    unit: str | None = None,
    targets: bool = False,
) -> str:
    """All curves in one figure, each labelled at its end; `unit` is that of an x axis that has no rounds."""
    with rc_context(STYLE):
        figure, axes = panel(len(comparison.rows))
        ends = []
        for row, line, style in zip(comparison.rows, lines, line_styles(comparison.rows), strict=True):
            if line is not None and np.isfinite(line.y).any():
                x, y = _draw(axes, line, style)
                ends.append((x, y, row.label, style))
        axes.set(xlabel=x_label, ylabel=y_label, title=title)
        if targets:
            for target in comparison.targets:
                axes.axhline(100 * target, color=INK, alpha=0.5, linewidth=0.8, linestyle=":")
        _scale(axes, ends, unit, "loss" in y_label)
        label_ends(axes, ends)
        return themed(svg(figure, f"{y_label}, {title}"))


def _draw(axes: Axes, line: Line, style: dict[str, Any]) -> tuple[float, float]:
    """Mean over seeds as a line, lowest to highest seed as a band; gives the end of the line."""
    known = np.isfinite(line.y).all(axis=0)
    if not known.any():
        known = np.isfinite(line.y).any(axis=0)
    x, y = line.x[known], line.y[:, known]
    mean = np.nanmean(y, axis=0)
    axes.plot(x, mean, marker="o" if len(x) == 1 else "", markersize=4, **style)
    axes.fill_between(x, np.nanmin(y, axis=0), np.nanmax(y, axis=0), color=style["color"], alpha=0.12, linewidth=0)
    return float(x[-1]), float(mean[-1])


def _scale(
    axes: Axes, ends: Sequence[tuple[float, float, str, dict[str, Any]]], unit: str | None, is_loss: bool
) -> None:
    """Whole rounds or round amounts at the x axis, which ends with the last curve; wide losses as logarithms."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if unit is not None:
        axes.xaxis.set_major_formatter(EngFormatter(unit))
    if ends and max(x for x, *_ in ends) > axes.get_xlim()[0]:
        axes.set_xlim(right=max(x for x, *_ in ends))
    heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines] or [np.empty(0)])
    if is_loss and len(heights) and heights.min() > 0 and heights.max() > WIDE * heights.min():
        axes.set_yscale("log")
