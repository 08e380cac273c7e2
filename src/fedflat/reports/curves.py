"""Training curves of all methods: accuracy and losses against rounds, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .comparison_data import ComparisonData, FinishedRun, Row, score_of
from .figures import (
    BAND,
    INK,
    INLINE,
    MOST_BANDS,
    SMALL,
    End,
    inline,
    label_ends,
    line_styles,
    panel,
    panels,
    set_logarithmic,
)

MOST_SMOOTHED = 5  # evaluations in a smoothing window, at most
SMOOTHED_SHARE = 20  # the window is at most a twentieth of the evaluations
HUGE = 1e30  # a loss beyond this is drawn as a gap
WIDE = 30.0  # ratio of the highest to the lowest loss from which the axis is logarithmic
Metrics = Mapping[str, Any]  # of one round, by name
COSTS: Sequence[tuple[str, str, str, Callable[[Metrics], float]]] = (  # title, x label, unit, cost
    ("against gradients", "minibatch gradients of all clients", "", lambda row: row["gradients"]),
    ("against bytes sent", "sent to and from all clients", "B", lambda row: row["bytes_down"] + row["bytes_up"]),
)


@dataclass(frozen=True)
class Line:
    """One row's curve."""

    x: np.ndarray  # (n,), means over seeds
    y: np.ndarray  # (seeds, n), smoothed; NaN where nothing finite was measured


def window_of(comparison: ComparisonData) -> int:
    """Return the size of the smoothing window: a twentieth of the shortest run's evaluations, at most five."""
    fewest = min(len(_evaluated(run, score_of(run))) for run in comparison.runs)
    return max(1, min(MOST_SMOOTHED, fewest // SMOOTHED_SHARE))


def smoothing_in_words(window: int) -> str:
    """Describe the smoothing of curves."""
    return f"Each point is the mean of the last {window} evaluations" if window > 1 else "Nothing is smoothed"


def accuracy_curves(comparison: ComparisonData) -> list[Drawing]:
    """Return test accuracy against rounds: for each task a figure of all rounds, and one of the second half."""
    figures = []
    score, name = comparison.score, score_of(comparison.runs[0])
    called_score = name.removeprefix("test_")
    targets = [score.factor * target for target in comparison.targets]
    for task, rows, names in panels(comparison.rows):
        lines = _lines(comparison, rows, name, _rounds, score.factor)
        late = [line and Line(line.x[len(line.x) // 2 :], line.y[:, len(line.x) // 2 :]) for line in lines]
        halves = (called_score, "all rounds", lines, targets), (f"{called_score} second half", "second half", late, ())
        for called, title, shown, goals in halves:
            figures.append(Drawing(called, task, rows, names, shown, title, score.axis,
                                   may_be_logarithmic=not score.is_share, targets=goals))  # fmt: skip
    return figures


def loss_curves(comparison: ComparisonData) -> list[Drawing]:
    """Return test and training loss against rounds for each task; a loss that no run has is left out."""
    figures = []
    for task, rows, names in panels(comparison.rows):
        for name, title in (("test_loss", "test loss"), ("train_loss", "training loss")):
            lines = _lines(comparison, rows, name, _rounds)
            if any(lines):
                figures.append(Drawing(title, task, rows, names, lines, title, title, may_be_logarithmic=True))
    return figures


def aggregation_curves(comparison: ComparisonData) -> list[Drawing]:
    """Return the aggregation error of adapters against rounds for each task; none if no run measured it."""
    figures = []
    y_label = "aggregation error"
    for task, rows, names in panels(comparison.rows):
        for name, title in (("largest", "largest of a layer"), ("mean", "mean over layers")):
            lines = [_line(row, f"aggregation_error_{name}", _rounds, 1.0, window=1) for row in rows]
            if any(lines):
                called = f"{y_label} {name}"
                figures.append(Drawing(called, task, rows, names, lines, title, y_label, may_be_logarithmic=True))
    return figures


def cost_curves(comparison: ComparisonData) -> list[Drawing]:
    """Return test accuracy against gradients computed and bytes sent by all clients, for each task."""
    figures = []
    score, name = comparison.score, score_of(comparison.runs[0])
    for task, rows, names in panels(comparison.rows):
        for title, x_label, unit, spent in COSTS:
            lines = _lines(comparison, rows, name, spent, score.factor)
            called = f"{name.removeprefix('test_')} {title}"
            figures.append(Drawing(called, task, rows, names, lines, title, score.axis, x_label, unit,
                                   may_be_logarithmic=not score.is_share))  # fmt: skip
    return figures


def by_method(comparison: ComparisonData) -> list[str]:
    """Draw the accuracy of each row by itself, with its band, beside its baseline's; only where one panel has none."""
    drawings = accuracy_curves(comparison)[::2] if len(comparison.seeds) > 1 else []  # without the second halves
    return [drawn for drawing in drawings if not drawing.has_bands for drawn in drawing.each()]


def svgs(drawings: Iterable[Drawing]) -> list[str]:
    """Draw figures of a page."""
    return [drawing.svg() for drawing in drawings]


def _rounds(metrics: Metrics) -> float:
    return float(metrics["t"] + 1)


def _evaluated(run: FinishedRun, name: str) -> dict[int, Metrics]:
    """Return the metrics of the rounds in which the metric `name` was evaluated, by number of the round from 0."""
    if name not in run.metrics.column_names:
        return {}
    table = run.metrics.select(list(dict.fromkeys(("t", name, "gradients", "bytes_down", "bytes_up"))))
    return {row["t"]: row for row in table.to_pylist() if row[name] is not None}


def _lines(
    comparison: ComparisonData, rows: Sequence[Row], name: str, x: Callable[[Metrics], float], factor: float = 1.0
) -> list[Line | None]:
    """Return the curve of each row; None for a row if any of its runs lacks the metric."""
    window = window_of(comparison)
    return [_line(row, name, x, factor, window) for row in rows]


def _line(row: Row, name: str, x: Callable[[Metrics], float], factor: float, window: int) -> Line | None:
    runs = [_evaluated(run, name) for run in row.runs]
    rounds = sorted(set(runs[0]).intersection(*runs[1:]))
    if not rounds:
        return None
    places = np.array([[x(run[t]) for t in rounds] for run in runs]).mean(axis=0)
    values = factor * np.array([[run[t][name] for t in rounds] for run in runs], dtype=float)
    values[~(np.abs(values) < HUGE)] = np.nan
    return Line(places, np.array([smoothed(of_seed, window) for of_seed in values]))


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the last `window` finite values at each place, (n,); NaN where `values` is not finite."""
    padded = np.concatenate([np.full(window - 1, np.nan), values])
    around = np.lib.stride_tricks.sliding_window_view(padded, window)
    known = np.isfinite(around)
    total, number = np.where(known, around, 0).sum(axis=1), known.sum(axis=1)
    means: np.ndarray = np.divide(total, number, out=np.full(len(values), np.nan), where=number > 0)
    means[~np.isfinite(values)] = np.nan
    return means


@dataclass(frozen=True)
class Drawing:
    """The curves of several rows in one figure."""

    name: str  # what it shows, without the task
    task: str  # empty if all rows have the same one
    rows: Sequence[Row]
    names: Sequence[str]
    lines: Sequence[Line | None]
    title: str
    y_label: str
    x_label: str = "communication round"
    unit: str | None = None  # of the x axis; None if the axis shows rounds
    may_be_logarithmic: bool = False
    targets: Sequence[float] = ()  # values with a dotted line

    @property
    def has_bands(self) -> bool:
        """Whether the bands of all rows can be told apart in one panel."""
        return len(self.rows) <= MOST_BANDS

    def svg(self) -> str:
        """Draw the figure for a page, with the label of each curve at its end."""
        title = f"{self.title}, {self.task}" if self.task else self.title
        with rc_context(INLINE):
            figure, axes = panel(len(self.rows))
            ends = self.draw(axes, line_styles(self.rows), self.has_bands)
            axes.set(title=title)
            label_ends(axes, ends)
            return inline(figure, ", ".join(dict.fromkeys((self.y_label, title))))

    def each(self) -> list[str]:
        """Draw each row but baselines by itself, beside its baseline, for a page; all with the same axes."""
        values = np.concatenate([line.y.ravel() for line in self.lines if line is not None])
        known = values[np.isfinite(values)]
        if not len(known):
            return []
        margin = 0.04 * np.ptp(known) or 1.0
        limits = known.min() - margin, known.max() + margin
        return [self._one(place, limits) for place, row in enumerate(self.rows) if not row.is_baseline]

    def _one(self, place: int, limits: tuple[float, float]) -> str:
        """Draw the row at `place` beside its baseline. limits: of the y axis."""
        row, name, styles = self.rows[place], self.names[place], line_styles(self.rows)
        places = [i for i, other in enumerate(self.rows) if i == place or other.label == row.baseline]
        shown = replace(
            self, rows=[self.rows[i] for i in places], names=[self.names[i] for i in places],
            lines=[self.lines[i] for i in places],
        )  # fmt: skip
        with rc_context(INLINE):
            figure = Figure(figsize=SMALL, layout="constrained")
            axes: Axes = figure.subplots()
            shown.draw(axes, [styles[i] for i in places])
            axes.set(title=name, xlabel="", ylabel="", ylim=limits)
            return inline(figure, ", ".join(filter(None, (self.y_label, name, self.task))))

    def draw(self, axes: Axes, styles: Sequence[dict[str, Any]], has_bands: bool = True) -> list[End]:
        """Draw the curves in the styles of the rows; return the ends of those that have a finite value."""
        ends = []
        for name, line, style in zip(self.names, self.lines, styles, strict=True):
            if line is not None and np.isfinite(line.y).any():
                ends.append((*_draw(axes, line, style, has_bands), name, style))
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        for target in self.targets:
            axes.axhline(target, color=INK, alpha=0.5, linewidth=0.8, linestyle=":")
        self._scale(axes, [x for x, *_ in ends])
        return ends

    def _scale(self, axes: Axes, ends: Sequence[float]) -> None:
        """Set ticks, unit and right end of the x axis, and make the y axis logarithmic if its range is wide."""
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6 if self.unit is None else 4, integer=True))
        if self.unit is not None:
            axes.xaxis.set_major_formatter(EngFormatter(self.unit))
        if ends and max(ends) > axes.get_xlim()[0]:
            axes.set_xlim(right=max(ends))
        heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines] or [np.empty(0)])
        if self.may_be_logarithmic and len(heights) and 0 < WIDE * heights.min() < heights.max():
            set_logarithmic(axes)


def _draw(axes: Axes, line: Line, style: dict[str, Any], has_band: bool) -> tuple[float, float]:
    """Draw the mean over seeds as a line, and their range as a band; return x and y of the end of the line."""
    known = np.isfinite(line.y).all(axis=0)
    if not known.any():
        known = np.isfinite(line.y).any(axis=0)
    x, y = line.x[known], line.y[:, known]
    mean = np.nanmean(y, axis=0)
    axes.plot(x, mean, **(_of_point(style) if len(x) == 1 else style))
    if has_band:
        axes.fill_between(x, np.nanmin(y, axis=0), np.nanmax(y, axis=0), color=style["color"], alpha=BAND, linewidth=0)
    return float(x[-1]), float(mean[-1])


def _of_point(style: dict[str, Any]) -> dict[str, Any]:
    """Return the style of a curve for a single point, which would be invisible without a marker."""
    return {"markersize": 4} | style | {"marker": style.get("marker") or "o", "markevery": None}
