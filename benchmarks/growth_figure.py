"""The cost of a round against whatever grows: a figure and a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedflat.files import make_folder, write_atomically
from fedflat.reports.figures import STYLE, line_style, set_logarithmic, svg

from .growth import Cost
from .results import Settings, described


def write_growth(costs: Sequence[Cost], settings: Settings, folder: Path) -> list[Path]:
    """Write growth.json and growth.svg to `folder`. Raises InputError if they cannot be written."""
    content = {"settings": described(settings), "points": [asdict(cost) for cost in costs]}
    texts = {"growth.json": json.dumps(content, indent=1) + "\n", "growth.svg": growth_figure(costs)}
    make_folder(folder)
    for name, text in texts.items():
        write_atomically(folder / name, lambda file, text=text: file.write_text(text))
    return [folder / name for name in texts]


def read_growth(path: Path) -> list[Cost]:
    """Return the costs in a growth.json."""
    return [Cost.of(point) for point in json.loads(path.read_text())["points"]]


def growth_figure(costs: Sequence[Cost]) -> str:
    """Return a figure: seconds of a round above, peak memory below, a column for each of what grows."""
    axes = list(dict.fromkeys(cost.axis for cost in costs))
    with rc_context(STYLE):
        figure = Figure(figsize=(2.8 * len(axes), 5), layout="constrained")
        grid = figure.subplots(2, len(axes), sharex="col", sharey="row", squeeze=False)
        for axis, (above, below) in zip(axes, grid.T, strict=True):
            here = [cost for cost in costs if cost.axis == axis]
            _seconds(above, here)
            _memory(below, here)
            below.set(xlabel=axis)
        grid[0, 0].set(ylabel="seconds of a round")
        grid[1, 0].set(ylabel="peak memory above imports, MB")
        return svg(figure, "cost of a round against what grows")


def _seconds(axes: Axes, costs: Sequence[Cost]) -> None:
    """Draw medians by the clock, from the least to the most."""
    for i, (method, mine) in enumerate(_by_method(costs).items()):
        spreads = [cost.wall for cost in mine]
        below, above = [s.median - s.low for s in spreads], [s.high - s.median for s in spreads]
        axes.errorbar([cost.value for cost in mine], [s.median for s in spreads], (below, above), marker="o",
                      markersize=3, label=method, **line_style(i))  # fmt: skip
    set_logarithmic(axes, "xy")
    axes.legend(frameon=False, fontsize="small")


def _memory(axes: Axes, costs: Sequence[Cost]) -> None:
    for i, mine in enumerate(_by_method(costs).values()):
        known = [(cost.value, cost.peak / 1e6) for cost in mine if cost.peak]
        axes.plot(*zip(*known, strict=True), marker="o", markersize=3, **line_style(i)) if known else None
    set_logarithmic(axes, "xy")


def _by_method(costs: Sequence[Cost]) -> dict[str, list[Cost]]:
    return {
        method: [cost for cost in costs if cost.method == method] for method in dict.fromkeys(c.method for c in costs)
    }
