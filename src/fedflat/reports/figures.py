"""Figures as inline SVG."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .comparison_data import ComparisonData, FinishedRun, curve_of

COLOURS = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c510a", "#7b3294", "#b2182b")
DASHES = ("-", "--", "-.")
SMOOTHED_OVER = 5  # evaluations
STYLE: Any = {  # matplotlib's type of it is a list of all its settings
    "svg.fonttype": "none",
    "svg.hashsalt": "fedflat",  # the same figure always gives the same bytes
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "text.parse_math": False,  # a `$` in a label is a `$`
}


def accuracy_curves(comparison: ComparisonData) -> str:
    """Test accuracy against rounds, and its second half larger: mean over seeds, lowest to highest seed as a band."""
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        whole, late = figure.subplots(1, 2, width_ratios=(1, 1))
        for i, row in enumerate(comparison.rows):
            rounds, values = _accuracies(row.runs)
            style = line_style(i)
            half = len(rounds) // 2
            _curve(whole, rounds, values, style, row.label)
            _curve(late, rounds[half:], values[:, half:], style, row.label)
        for axes, title in ((whole, "all rounds"), (late, "second half")):
            axes.set(xlabel="communication round", ylabel="test accuracy %", title=title)
        for target in comparison.targets:
            whole.axhline(100 * target, color="#999999", linewidth=0.8, linestyle=":")
        figure.legend(*whole.get_legend_handles_labels(), loc="outside right center", frameon=False)
        return svg(figure, "accuracy against rounds")


def differences(comparison: ComparisonData) -> str | None:
    """Paired difference of each method to the baseline with its interval; None if there is nothing to pair."""
    rows = [(row.label, row.difference) for row in comparison.rows if row.difference is not None]
    if not rows:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.6 + 0.36 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, (_, d) in enumerate(reversed(rows)):
            low, high = (d.mean if end is None else end for end in (d.low, d.high))
            axes.plot([100 * low, 100 * high], [place, place], color=COLOURS[1], linewidth=2)
            axes.plot(100 * d.mean, place, "o", color=COLOURS[1])
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)])
        axes.set(xlabel=f"test accuracy minus {comparison.baseline}'s, points", ylim=(-0.6, len(rows) - 0.4))
        return svg(figure, "paired differences")


def partition_map(counts: np.ndarray, title: str) -> str:
    """Samples per client and class as a heat map; of more than 200 clients only every k-th is drawn."""
    step = -(-len(counts) // 200)
    with rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(8, 2.8), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(counts[::step].T, aspect="auto", cmap="Blues", interpolation="nearest")
        figure.colorbar(image, ax=axes, label="samples")
        axes.set(xlabel="client" if step == 1 else f"client (every {step}th)", ylabel="class", title=title)
        return svg(figure, "partition")


def line_style(i: int) -> dict[str, Any]:
    """Colour and dashes of the i-th method, the same in every figure."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}


def _curve(axes: Axes, rounds: np.ndarray, values: np.ndarray, style: dict[str, Any], label: str) -> None:
    """Mean over seeds as a line, lowest to highest seed as a band; `values` are (seeds, rounds)."""
    axes.plot(rounds, 100 * values.mean(axis=0), linewidth=1.6, label=label, **style)
    low, high = 100 * values.min(axis=0), 100 * values.max(axis=0)
    axes.fill_between(rounds, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _accuracies(runs: Sequence[FinishedRun]) -> tuple[np.ndarray, np.ndarray]:
    """The evaluated rounds that all runs share (n,), and their smoothed accuracies (runs, n)."""
    curves = [dict(zip(curve.rounds.tolist(), curve.accuracy.tolist(), strict=True)) for curve in map(curve_of, runs)]
    rounds = sorted(set(curves[0]).intersection(*curves[1:]))
    return np.array(rounds), np.array([_smooth(np.array([curve[t] for t in rounds])) for curve in curves])


def _smooth(values: np.ndarray) -> np.ndarray:
    """At each place the mean of the last `SMOOTHED_OVER` values, of fewer at the start."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - SMOOTHED_OVER, 0)
    smoothed: np.ndarray = (total[ends] - total[starts]) / (ends - starts)
    return smoothed


def svg(figure: Figure, label: str) -> str:
    """The figure as an `<svg>` element with a label for screen readers."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a reader's browser has other fonts
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": label})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
