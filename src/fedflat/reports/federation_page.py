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
NAMED = 40  # clients whose names stand beside the map
ROW = 0.22  # inches of a client's row in the map
STATES = {"took part": "#2b8cc4", "missing or refused": "#e0701f"}  # a raster, so not in the colours of a dark page
FILE = "report.html"


def write_federation_page(data: FederationData, folder: Path) -> Path:
    """Write the page to `folder`, atomically. Raises InputError if it cannot be written."""
    curves = [drawn for name, title, factor in CURVES if (drawn := _curve(data.history, name, title, factor))]
    text = environment().get_template("federation.html.j2").render(
        data=data, title=f"{data.label}, a federation of {len(data.clients)} clients", curves=curves, map=_map(data)
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
        figure = Figure(figsize=(9, 1.1 + ROW * min(len(names), NAMED)), layout="constrained")
        axes = figure.subplots()
        extent = (0.5, state.shape[1] + 0.5, len(names) - 0.5, -0.5)
        colours = ListedColormap(list(STATES.values()))
        axes.imshow(state, aspect="auto", cmap=colours, vmin=0, vmax=1, interpolation="nearest", extent=extent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yticks(range(len(names)) if len(names) <= NAMED else [], names if len(names) <= NAMED else [])
        axes.set(xlabel="round", ylabel="" if len(names) <= NAMED else f"{len(names)} clients")
        handles = [Patch(color=colour, label=label) for label, colour in STATES.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, labelcolor=INK)
        return inline(figure, "who took part in each round")
