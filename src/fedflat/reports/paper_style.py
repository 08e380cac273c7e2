"""The style of figures for papers: sizes, fonts, and lines that differ on grey paper and for colour-blind readers.

Every colour has a contrast to white of at least 3:1, and no two are equally bright. Among lines with a marker, the pair
of dashes and marker repeats after 28, so colour is never the only difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .comparison_data import Row
from .figures import BASELINE_DASHES, INK, STYLE

WIDTHS = {"column": 3.35, "page": 6.9}  # inches
HEIGHTS = {"column": 2.1, "page": 2.8}  # of axes with their labels, in inches
FONT_SIZE = 8.0  # points
LEGEND_SIZE = 7.0
LEGEND_LINE = 0.14  # height of a line of the legend, in inches
HANDLE, CHARACTER = 0.5, 0.062  # widths of a sample of a line with its gaps, and of a letter beside it, in inches
MOST_ACROSS = 6  # entries in a line of the legend
COLOURS = ("#d9742b", "#0077d0", "#1b6f37", "#892255", "#00337e")
DASHES: Sequence[Any] = ("-", (0, (5, 1.5)), (0, (4, 1, 1, 1)), (0, (1.2, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BASELINE_MARKERS = ("", "x", "+", "1")
SPACING = 0.16  # of markers, as a share of the diagonal of the axes
PAPER: Any = STYLE | {
    "pdf.fonttype": 42,  # TrueType, embedded; publishers refuse fonts of Type 3, which is the default
    "svg.fonttype": "path",  # an SVG holds no font, and another program would set the text in another one
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
    "font.size": FONT_SIZE,
    "axes.labelsize": FONT_SIZE,
    "xtick.labelsize": LEGEND_SIZE,
    "ytick.labelsize": LEGEND_SIZE,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.4,
    "text.usetex": False,
}


def paper_styles(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return colour, dashes and marker of each row; a baseline is black, dashed and drawn on top."""
    styles: list[dict[str, Any]] = []
    baselines = others = 0
    for row in rows:
        if row.is_baseline:
            styles.append(_baseline_style(baselines) | _spaced(len(styles)))
            baselines += 1
        else:
            styles.append(_style(others) | _spaced(len(styles)))
            others += 1
    return styles


def _style(number: int) -> dict[str, Any]:
    """Return the style of a line that is no baseline's."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linewidth": 1.1,
        "zorder": 3,
    }


def _baseline_style(number: int) -> dict[str, Any]:
    """Return the style of a baseline's line."""
    return {
        "color": INK,
        "linestyle": BASELINE_DASHES[number % len(BASELINE_DASHES)],
        "marker": BASELINE_MARKERS[number // len(BASELINE_DASHES) % len(BASELINE_MARKERS)],
        "linewidth": 1.4,
        "zorder": 4,
    }


def _spaced(place: int) -> dict[str, Any]:
    """Return where markers are: at other places of each line, so that they do not hide one another."""
    return {"markersize": 3.2, "markevery": (SPACING * (place % len(COLOURS)) / len(COLOURS), SPACING)}


def entries_across(labels: Sequence[str], size: str) -> int:
    """Return how many entries of a legend fit beside one another."""
    widest = HANDLE + CHARACTER * max(map(len, labels))
    return max(1, min(MOST_ACROSS, len(labels), int(WIDTHS[size] / widest)))
