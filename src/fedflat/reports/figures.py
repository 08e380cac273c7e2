"""Figures as inline SVG, in colours that a page can replace in a dark theme."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from html import escape, unescape
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ..experiments.settings_tables import labels
from ..experiments.statistics import Difference
from .comparison_data import ComparisonData, Row, by_task

End = tuple[float, float, str, dict[str, Any]]  # x and y of the end of a curve, its label and its style
INK = "#1c1c1c"  # colour of text, axes and baselines; a figure within a page has the page's text colour instead
COLOURS = ("#4d4d4d", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c510a", "#7b3294", "#b2182b")
DASHES = ("-", "--", "-.")
BASELINE_DASHES = ("--", ":", "-.")
LABEL_SIZE = 8.0  # points
PANEL = 5.4, 3.4  # inches; two stand side by side on a wide page
SMALL = 2.7, 2.0  # of a panel with one curve and its baseline's; four stand side by side
MOST_BANDS = 3  # in a panel; more merge into a grey cloud
BAND = 0.18  # opacity
SHARE = 0.78  # approximate share of a panel's height that its axes take
STYLE: Any = {  # Any, because matplotlib's type is a list of all its settings
    "svg.fonttype": "none",
    "svg.hashsalt": "fedflat",  # the same figure always gives the same bytes
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "text.parse_math": False,  # a `$` in a label begins no formula
}
INLINE: Any = STYLE | {  # of a figure within a page
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
    "grid.alpha": 0.15,
    "font.size": 9,
    "axes.titlesize": 10,
}
SAMPLES = LinearSegmentedColormap.from_list(
    "samples", [(0.0, 0.45, 0.7, 0.0), (0.0, 0.45, 0.7, 1.0)]
)  # from transparent


def differences(comparison: ComparisonData) -> str | None:
    """Draw the paired difference of each method to its baseline for a page; None without any pair."""
    rows = with_difference(comparison)
    if not rows:
        return None
    with rc_context(INLINE):
        figure = Figure(figsize=(6.2, 0.6 + 0.3 * len(rows)), layout="constrained")
        draw_differences(figure.subplots(), comparison)
        return inline(figure, "paired differences")


def with_difference(comparison: ComparisonData) -> list[tuple[str, Difference]]:
    """Return label and paired difference of each row that has a baseline."""
    return [(row.label, row.difference) for row in comparison.rows if row.difference is not None]


def draw_differences(axes: Axes, comparison: ComparisonData) -> None:
    """Draw the paired difference of each method to its baseline with its interval."""
    rows, score = with_difference(comparison), comparison.score
    for place, (_, d) in enumerate(reversed(rows)):
        low, high = (d.mean if end is None else end for end in (d.low, d.high))
        certain = d.low is not None and not low <= 0 <= high
        style: dict[str, Any] = {"color": COLOURS[1] if certain else INK, "alpha": 1.0 if certain else 0.55}
        axes.plot([score.factor * low, score.factor * high], [place, place], linewidth=2, **style)
        axes.plot(score.factor * d.mean, place, "o", markersize=5, **style)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [label for label, _ in reversed(rows)])
    unit = ", points" if score.is_share else ""
    axes.set(xlabel=f"{score.title} minus {comparison.baseline}'s{unit}", ylim=(-0.6, len(rows) - 0.4))


def set_logarithmic(axes: Axes, which: str = "y") -> None:
    """Make the axes `which` ("x", "y" or "xy") logarithmic, with plain numbers at the ticks, not matplotlib's formulas.

    Ticks are at 1, 2 and 5 times powers of ten if the axis spans less than three decades, else at powers of ten.
    """
    for axis in which:
        axes.set(**{f"{axis}scale": "log"})
        low, high = getattr(axes, f"get_{axis}lim")()
        ticks = getattr(axes, f"{axis}axis")
        ticks.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ticks.set_minor_formatter(NullFormatter())


def partition_map(counts: np.ndarray, title: str, on_a_page: bool = False) -> str:
    """Draw samples per client and class as a heat map, as SVG; with more than 200 clients, only every k-th is shown.

    counts: (clients, classes). on_a_page: whether to use the colours of the page and no background.
    """
    step = -(-len(counts) // 200)
    with rc_context((INLINE if on_a_page else STYLE) | {"axes.grid": False}):
        figure = Figure(figsize=(7, 2.6), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(counts[::step].T, aspect="auto", cmap=SAMPLES, vmin=0, interpolation="nearest")
        figure.colorbar(image, ax=axes, label="samples")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.set(
            xlabel="client" if step == 1 else f"client (every {step}th)",
            ylabel="class" if counts.shape[1] > 1 else "",
            title=title,
        )
        return inline(figure, "partition") if on_a_page else svg(figure, "partition")


def line_style(i: int) -> dict[str, Any]:
    """Return colour and dashes of the i-th of several curves without a baseline."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}


def line_styles(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return colour and dashes of each row, the same in every figure; a baseline is dashed and drawn on top."""
    styles: list[dict[str, Any]] = []
    baselines = others = 0
    for row in rows:
        if row.is_baseline:
            dashes = BASELINE_DASHES[baselines % len(BASELINE_DASHES)]
            styles.append({"color": INK, "linestyle": dashes, "linewidth": 1.8, "zorder": 4})
            baselines += 1
        else:
            colour = COLOURS[1 + others % (len(COLOURS) - 1)]
            dashes = DASHES[others // (len(COLOURS) - 1) % len(DASHES)]
            styles.append({"color": colour, "linestyle": dashes, "linewidth": 1.5, "zorder": 3})
            others += 1
    return styles


def panels(rows: Sequence[Row]) -> list[tuple[str, list[Row], list[str]]]:
    """Return for each figure the name of its task, the rows of the task, and their labels within the figure.

    Labels leave out settings that all rows of the figure share. A single task has an empty name.
    """
    tasks = by_task(rows)
    names = labels([""] * len(tasks), [of_task[0].task for of_task in tasks])
    called = [labels([row.runs[0].method for row in of_task], [row.settings for row in of_task]) for of_task in tasks]
    return [(name[1:-1], of_task, own) for name, of_task, own in zip(names, tasks, called, strict=True)]


def panel(rows: int) -> tuple[Figure, Axes]:
    """Make a figure with room on the right for the labels of `rows` curves."""
    width, height = PANEL
    figure = Figure(figsize=(width, max(height, 0.8 + rows * LABEL_SIZE * 1.25 / 72)), layout="constrained")
    axes: Axes = figure.subplots()
    return figure, axes


def label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Write the label of each curve beside the axes, without overlap.

    A line in the curve's style leads from its end to the label, which may be higher or lower than the end.
    """
    if not ends:
        return
    axes.autoscale_view()  # matplotlib does it when it draws, and the places below are needed now
    to_axes = axes.transData + axes.transAxes.inverted()
    places = np.array([to_axes.transform((x, y)) for x, y, _, _ in ends])
    height = axes.figure.get_size_inches()[1] * 72 * SHARE  # type: ignore[union-attr]  # points
    heights = spread(places[:, 1], LABEL_SIZE * 1.2 / height)
    for (x, y), at, (_, _, label, style) in zip(places, heights, ends, strict=True):
        where: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        axes.plot([x, 1.0], [y, y], color=style["color"], linestyle=":", linewidth=0.6, **where)
        axes.plot([1.0, 1.03], [y, at], color=style["color"], linewidth=0.6, **where)
        axes.plot([1.03, 1.07], [at, at], **{**style, "linewidth": 1.5}, **where)
        axes.text(1.08, at, label, fontsize=LABEL_SIZE, va="center", transform=axes.transAxes)


def spread(places: np.ndarray, gap: float) -> np.ndarray:
    """Return the heights (n,) nearest to `places` that are at least `gap` apart, and in [0, 1] if there is room."""
    order, room = np.argsort(places, kind="stable"), gap * np.arange(len(places))
    top = 1 - room[-1]
    apart = np.empty(len(places))
    apart[order] = nearest_ascending(places[order] - room).clip(min(0.0, top), top) + room
    return apart


def nearest_ascending(values: np.ndarray) -> np.ndarray:
    """Return the ascending numbers (n,) nearest to `values` in least squares: isotonic regression.

    By the max-min formula, number k is the maximum over i <= k of the minimum over j >= k of the mean of values i to j.
    """
    first, last = np.indices((len(values), len(values)))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    means = np.where(first <= last, (sums[last + 1] - sums[first]) / (abs(last - first) + 1), np.inf)
    least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]
    ascending: np.ndarray = np.where(first <= last, least, -np.inf).max(axis=0)
    return ascending


def svg(figure: Figure, label: str, transparent: bool = False) -> str:
    """Return the figure as an `<svg>` element with a label for screen readers."""
    buffer, facts = io.StringIO(), {"Date": None, "Creator": None, "Title": label}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a reader's browser has other fonts
        figure.savefig(buffer, format="svg", transparent=transparent, metadata=facts)
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


def inline(figure: Figure, label: str) -> str:
    """Return the figure as SVG for a page: without a background, in colours that the page can set."""
    return themed(svg(figure, label, transparent=True))


def themed(svg: str) -> str:
    """Replace `INK` by the text colour of the page, and `COLOURS` by variables that the page can set."""
    names = {INK: "currentColor"} | {c: f"var(--curve-{i}, {c})" for i, c in enumerate(COLOURS)}
    return re.sub(r"#[0-9a-f]{6}(?=[;\"])", lambda colour: names.get(colour[0], colour[0]), svg)


def fixed(svg: str) -> str:
    """Undo `themed`: return the figure in colours of its own, for a file that no page colours."""
    return re.sub(r"currentColor(?=[;\"])|var\(--curve-\d+, (#[0-9a-f]{6})\)", lambda found: found[1] or INK, svg)


def label_of(svg: str) -> str:
    """Return the label that `svg` gave to a figure."""
    found = re.search(r'aria-label="([^"]*)"', svg)
    return unescape(found[1]) if found else ""
