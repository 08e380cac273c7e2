"""The page of a federation: accuracy by round, who took part, who was missing or refused, and what else happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from ..files import make_folder, write_atomically
from .export import environment
from .federation_data import FederationData
from .figures import COLOURS, INK, INLINE, PANEL, inline
from .text_table import text_table

CURVES = (("test_accuracy", "test accuracy %", 100.0), ("test_loss", "test loss", 1.0), ("drift", "drift", 1.0))
NAMED = 40  # most clients of a map, whose names stand beside it
COLUMNS = 150  # most rounds of a map
BARS = 60  # most of them where there is no map
ROW = 0.22  # inches of a client's row in the map
STATES = {"took part": "#2b8cc4", "missing or refused": "#e0701f"}  # a raster, so not in the colours of a dark page
FILE = "report.html"


def write_federation_page(data: FederationData, folder: Path) -> Path:
    """Write the page to `folder`, atomically. Raises InputError if it cannot be written."""
    curves = [drawn for name, title, factor in CURVES if (drawn := _curve(data.history, name, title, factor))]
    is_large = len(data.clients) > NAMED or len(data.history) > COLUMNS
    text = environment().get_template("federation.html.j2").render(
        data=data, title=f"{data.label}, a federation of {len(data.clients)} clients", curves=curves,
        map=_counts(data) if is_large else _map(data), is_large=is_large,
    )  # fmt: skip
    make_folder(folder)
    path = folder / FILE
    write_atomically(path, lambda file: file.write_text(text))
    return path


def clients_table(data: FederationData) -> Table:
    """The clients for a rich console."""
    titles = ("client", "samples", "took part", "missing", "last in round", "mostly because")
    rows = [(one.title, one.samples, one.counted, one.missing, one.last, one.reason) for one in data.clients]
    texts = [["–" if cell is None else str(cell) for cell in row] for row in rows]
    return text_table(titles, texts, ("client", "mostly because"))


def _curve(history: Sequence[Mapping[str, float]], name: str, title: str, factor: float) -> str | None:
    """One metric against rounds, as SVG; None if it was never taken."""
    points = [(row["t"] + 1, factor * row[name]) for row in history if row.get(name) is not None]
    if not points:
        return None
    with rc_context(INLINE):
        figure = Figure(figsize=PANEL, layout="constrained")
        axes = figure.subplots()
        x, y = np.array(points, dtype=float).T
        axes.plot(x, np.where(np.isfinite(y), y, np.nan), color=COLOURS[1], marker="o" if len(x) < 30 else None, ms=3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="round", ylabel=title)
        return inline(figure, f"{title} by round")


def _map(data: FederationData) -> str | None:
    """Who took part in each round, as SVG; None if no round is over."""
    names = [one.name for one in data.clients]
    if not names or not data.rounds:
        return None
    state = np.full((len(names), max(data.rounds) + 1), np.nan)
    places = {name: place for place, name in enumerate(names)}
    for t, facts in data.rounds.items():
        for value, some in enumerate((facts.counted or (), facts.missing)):
            state[[places[name] for name in some if name in places], t] = value
    with rc_context(INLINE | {"axes.grid": False}):
        figure = Figure(figsize=(9, 1.1 + ROW * len(names)), layout="constrained")
        axes = figure.subplots()
        extent = (0.5, state.shape[1] + 0.5, len(names) - 0.5, -0.5)
        colours = ListedColormap(list(STATES.values()))
        axes.imshow(state, aspect="auto", cmap=colours, vmin=0, vmax=1, interpolation="nearest", extent=extent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yticks(range(len(names)), names)
        for edges, line in (
            (np.arange(1, len(names)) - 0.5, axes.axhline),
            (np.arange(1, state.shape[1]) + 0.5, axes.axvline),
        ):
            for edge in edges:  # between cells, which are else one block where everybody takes part
                line(edge, color="white", linewidth=0.8)
        axes.set(xlabel="round")
        _legend(figure)
        return inline(figure, "who took part in each round")


def _counts(data: FederationData) -> str | None:
    """Draw how many clients took part by round, as SVG: means over neighbouring rounds; None if no round is over."""
    if not data.rounds:
        return None
    width = -(-(max(data.rounds) + 1) // BARS)
    found: dict[int, list[tuple[int, int]]] = {}
    for t, facts in data.rounds.items():
        found.setdefault(t // width, []).append((len(facts.counted or ()), len(facts.missing)))
    counted, missing = np.array([np.mean(some, axis=0) for some in found.values()]).T
    with rc_context(INLINE | {"axes.axisbelow": True}):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        axes = figure.subplots()
        middle = width * (np.array(list(found)) + 0.5) + 0.5
        for bottom, heights, colour in ((0.0, counted, "took part"), (counted, missing, "missing or refused")):
            axes.bar(middle, heights, width=0.9 * width, bottom=bottom, color=STATES[colour])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="round", ylabel="clients" if width == 1 else f"clients, mean of {width} rounds")
        _legend(figure)
        return inline(figure, "how many clients took part by round")


def _legend(figure: Figure) -> None:
    handles = [Patch(color=colour, label=label) for label, colour in STATES.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, labelcolor=INK)
