"""The figures of docs/study.md as SVG; the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedflat.experiments.statistics import mean_estimate
from fedflat.reports.figures import COLOURS, INK, STYLE, label_ends, line_style, panel, set_logarithmic, svg

from .analysis import MARGIN, MEASURES, METHODS, Contrast, Row, by_method

MARKERS = "osD"
SPAN = 0.66  # rows, that the contrasts of one method take


def contrast_figure(by_split: Mapping[str, Mapping[str, Sequence[Contrast]]]) -> str:
    """Return a figure of differences in points with intervals: a panel for each split, a colour for each comparison.

    The band is where a lead or a lag is less than the margin.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(5 * len(by_split), 5.4), layout="constrained")
        grid = figure.subplots(1, len(by_split), squeeze=False, sharey=True)[0]
        for axes, (split, kinds) in zip(grid, by_split.items(), strict=True):
            names = list(dict.fromkeys(one.method for some in kinds.values() for one in some))
            axes.axvspan(-100 * MARGIN, 100 * MARGIN, color=INK, alpha=0.07, linewidth=0)
            axes.axvline(0, color=INK, linewidth=0.8)
            for i, some in enumerate(kinds.values()):
                _contrasts(axes, some, names, SPAN * ((i + 0.5) / len(kinds) - 0.5), COLOURS[i + 1])
            axes.set_yticks(range(len(names)), names)
            axes.set(title=split, xlabel="test accuracy minus the plain base's, points")
        grid[0].invert_yaxis()
        marks = [Line2D([], [], color=COLOURS[i + 1], marker="o", markersize=4) for i, _ in enumerate(kinds)]
        figure.legend(marks, kinds, loc="outside lower center", ncols=len(kinds), frameon=False, fontsize="small")
        return svg(figure, "flat methods minus their plain bases")


def _contrasts(axes: Axes, some: Sequence[Contrast], names: Sequence[str], shift: float, colour: str) -> None:
    """Draw the points of one kind of comparison, with the intervals there are."""
    for one in some:
        if one.difference is None:
            continue
        d, y = one.difference, names.index(one.method) + shift
        if d.low is not None and d.high is not None:
            axes.plot([100 * d.low, 100 * d.high], [y, y], color=colour, linewidth=1.5)
        axes.plot(100 * d.mean, y, "o", color=colour, markersize=4)


def curve_figure(rows: Sequence[Row], title: str) -> str:
    """Return a figure of test accuracy by round of the tuned methods of one split, the mean over seeds."""
    methods = dict.fromkeys(row["method"] for row in rows)
    with rc_context(STYLE):
        figure, axes = panel(len(methods))
        ends = []
        for method in methods:
            x, y = _mean_curve([row for row in rows if row["method"] == method])
            style = line_style(METHODS.index(method))
            axes.plot(x, y, linewidth=1.5, **style)
            ends.append((x[-1], y[-1], method, style))
        axes.set(title=title, xlabel="round", ylabel="test accuracy, %")
        axes.set_xlim(axes.get_xlim())  # labels move no axis
        axes.set_ylim(axes.get_ylim())
        label_ends(axes, ends)
        return svg(figure, f"test accuracy by round, {title}")


def _mean_curve(rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return rounds, and the mean over seeds of the accuracies there in per cent."""
    at: dict[int, list[float]] = {}
    for row in rows:
        at.setdefault(row["round"], []).append(row["test_accuracy"])
    rounds = sorted(at)
    return rounds, [100 * mean_estimate(at[t]).mean for t in rounds]


def flatness_figure(by_split: Mapping[str, Sequence[Row]]) -> str:
    """Return a figure of accuracy against each measure.

    Small points are runs with the error of the measure, large ones are means of methods.
    """
    methods = list(dict.fromkeys(row["method"] for rows in by_split.values() for row in rows))
    styles = {method: _point_style(METHODS.index(method)) for method in methods}
    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 0.8 + 3 * len(by_split)), layout="constrained")
        grid = figure.subplots(len(by_split), len(MEASURES), squeeze=False, sharey="row")
        for line, (split, rows) in zip(grid, by_split.items(), strict=True):
            for axes, (measure, words) in zip(line, MEASURES.items(), strict=True):
                _cloud(axes, [row for row in rows if row[measure] is not None], measure, styles)
                axes.set(xlabel=words, title=split)
            line[0].set(ylabel="test accuracy, %")
        handles = [Line2D([], [], linestyle="", label=method, **style) for method, style in styles.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize="small")
        return svg(figure, "test accuracy against flatness")


def _cloud(axes: Axes, rows: Sequence[Row], measure: str, styles: Mapping[str, dict[str, Any]]) -> None:
    """Draw the runs and the methods in one panel, logarithmic where the measure spans a factor of ten."""
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        errors = [row[f"{measure}_error"] or 0.0 for row in own]
        axes.errorbar([row[measure] for row in own], [100 * row["accuracy"] for row in own], xerr=errors, linestyle="",
                      markersize=3, alpha=0.45, elinewidth=0.6, **styles[method])  # fmt: skip
    accuracy = by_method(rows, "accuracy")
    for method, mean in by_method(rows, measure).items():
        axes.plot(mean.mean, 100 * accuracy[method].mean, markersize=7, **styles[method])
    values = [row[measure] for row in rows]
    if values and 0 < 10 * min(values) < max(values):
        set_logarithmic(axes, "x")


def _point_style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i // len(COLOURS) % len(MARKERS)]}


def drift_figure(rows: Sequence[Row]) -> str:
    """Return a figure by round: FedGF's drift with its threshold above, its c below, a curve for each radius."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        for i, rho in enumerate(sorted({row["rho"] for row in rows})):
            own = [row for row in rows if row["rho"] == rho]
            style = line_style(i + 1)
            above.plot([row["round"] for row in own], [row["drift"] for row in own], label=f"rho = {rho:g}", **style)
            below.plot([row["round"] for row in own], [row["c"] for row in own], **style)
        for threshold in sorted({row["threshold"] for row in rows}):
            above.axhline(threshold, color=INK, linewidth=0.8, linestyle=":")
        above.set(ylabel="drift")
        above.legend(frameon=False, fontsize="small")
        below.set(xlabel="round", ylabel="c", ylim=(-0.05, 1.05))
        return svg(figure, "drift and interpolation of FedGF")
