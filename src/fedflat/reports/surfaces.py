"""Loss surfaces and feature maps: static figures, and a page on which surfaces can be rotated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.figure import Figure

from ..files import make_folder, write_text
from ..metrics.features import FeatureMap
from ..metrics.flatness.surface import Numbers, Surface
from .figures import COLOURS, DASHES, STYLE, set_logarithmic, svg
from .tables import environment

LEVELS = 16  # of contours
COLOUR_MAP = "viridis"
DECADES = 5  # most decades of a logarithmic scale, below the highest loss
PANELS_ACROSS = 3
SIDE = 3.1  # of a panel, in inches
OFF_PLANE = 1e-4  # the distance from which a model counts as not on the plane
PLAIN = STYLE | {"axes.grid": False}


@dataclass(frozen=True)
class Scale:
    """The scale of losses that all surfaces share."""

    lowest: float
    highest: float  # greater than `lowest`
    logarithmic: bool

    @classmethod
    def shared(cls, surfaces: Sequence[Surface]) -> Scale:
        """Return the scale from the lowest to the highest finite loss; logarithmic if their ratio exceeds 20."""
        losses = np.concatenate([surface.loss.ravel() for surface in surfaces])
        losses = np.append(losses, [mark.loss for surface in surfaces for mark in surface.marks])
        finite = losses[np.isfinite(losses)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        return cls(low, max(high, low + 1e-6 * max(1.0, abs(low))), high > max(low, 20 * low))

    @property
    def logarithmic_low(self) -> float:
        """The lower end of a logarithmic scale of these losses."""
        return max(self.lowest, self.highest * 10.0**-DECADES)

    @property
    def low(self) -> float:
        """The lower end of the scale."""
        return self.logarithmic_low if self.logarithmic else self.lowest

    @property
    def levels(self) -> Numbers:
        """The losses of the contours, ascending, (LEVELS + 1,)."""
        space = np.geomspace if self.logarithmic else np.linspace
        levels: Numbers = space(self.low, self.highest, LEVELS + 1)
        return levels


def contours(surfaces: Sequence[Surface]) -> str:
    """Draw contours side by side with the same levels, colours and axes, as SVG."""
    scale = Scale.shared(surfaces)
    colours = (LogNorm if scale.logarithmic else Normalize)(scale.low, scale.highest)  # from loss to colour
    across = sum(surface.label == surfaces[0].label for surface in surfaces)  # a row for each method
    with rc_context(PLAIN):
        figure, panels = _panels(surfaces, across if 1 < across <= 4 else PANELS_ACROSS)
        for surface, axes in zip(surfaces, panels, strict=True):
            loss = np.ma.masked_invalid(np.maximum(surface.loss, scale.low))
            drawn = axes.contourf(
                surface.x, surface.y, loss, scale.levels, cmap=COLOUR_MAP, norm=colours, extend="both"
            )
            axes.contour(surface.x, surface.y, loss, scale.levels, colors="white", linewidths=0.3, alpha=0.6)
            _draw_marks(axes, surface)
            axes.set(title=surface.title if len(surfaces) > 1 else surface.part, aspect="equal")
            axes.locator_params(nbins=5)
        bar = figure.colorbar(drawn, ax=panels, label="loss", ticks=scale.levels[::4], shrink=0.8)
        bar.ax.set_yticklabels([f"{level:.3g}" for level in scale.levels[::4]])
        bar.ax.minorticks_off()
        figure.supxlabel(surfaces[0].axes[0], fontsize="medium")
        figure.supylabel(surfaces[0].axes[1], fontsize="medium")
        return svg(figure, "loss surfaces as contours")


def profiles(surfaces: Sequence[Surface]) -> str | None:
    """Draw losses along the first direction as SVG, in one panel for global and one for local models.

    None if no surface has a profile.
    """
    # A surface with random directions has one model, in its centre.
    shown = [surface for surface in surfaces if len(surface.y) == 1 or len(surface.marks) == 1]
    groups = [[surface for surface in shown if _is_local(surface) == local] for local in (False, True)]
    groups = [group for group in groups if group]
    if not groups:
        return None
    labels, scale = list(dict.fromkeys(surface.label for surface in shown)), Scale.shared(shown)
    with rc_context(PLAIN | {"axes.grid": True}):
        figure = Figure(figsize=(4.2 * len(groups) + 1.6, 3.6), layout="constrained")
        panels = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False).ravel()
        for axes, group in zip(panels, groups, strict=True):
            for surface in group:
                _draw_profile(axes, surface, labels.index(surface.label), group, scale)
            title = (
                "local models on their own samples" if _is_local(group[0]) else group[0].part + "s" * (len(group) > 1)
            )
            axes.set(title=title, xlabel=group[0].axes[0])
            axes.locator_params(axis="x", nbins=5)
        panels[0].set_ylabel("loss")
        if scale.logarithmic:
            set_logarithmic(panels[0])
        figure.legend(*_legend(figure), loc="outside right center", frameon=False)
        return svg(figure, "loss along one direction")


def feature_maps(maps: Sequence[FeatureMap]) -> str:
    """Draw the maps side by side as SVG, with the same colours of classes and the same axes."""
    classes = sorted({int(c) for drawn in maps for c in np.unique(drawn.classes)})
    colours = COLOURS if len(classes) <= len(COLOURS) else colormaps["turbo"](np.linspace(0, 1, len(classes)))
    with rc_context(PLAIN):
        figure, panels = _panels(maps)
        for drawn, axes in zip(maps, panels, strict=True):
            for c, colour in zip(classes, colours, strict=False):
                x, y = drawn.points[drawn.classes == c].T
                axes.scatter(x, y, s=4, color=colour, linewidths=0, rasterized=True, label=f"class {c}")
            axes.set(title=drawn.title, xticks=[], yticks=[], aspect="equal")
        if len(classes) <= 20:
            figure.legend(*_legend(figure), loc="outside right center", frameon=False, markerscale=3)
        return svg(figure, "test samples by their features")


def write_landscape(
    surfaces: Sequence[Surface], maps: Sequence[FeatureMap], folder: Path, title: str, notes: Sequence[str] = ()
) -> Path:
    """Write landscape.html and its static figures (SVG) to `folder`; returns the path of the page.

    The page loads nothing and can be read without its script. Figures without data are left out.

    Raises InputError if the files cannot be written.
    """
    planes, titles = [surface for surface in surfaces if len(surface.y) > 1], dict[str, list[str]]()
    pictures: list[Surface | FeatureMap] = [*surfaces, *maps]
    for picture in pictures:
        titles.setdefault(picture.protocol, []).append(picture.title)
    drawn = {
        "contours": contours(planes) if planes else None,
        "profiles": profiles(surfaces),
        "features": feature_maps(maps) if maps else None,
    }
    figures = {name: figure for name, figure in drawn.items() if figure is not None}
    page = environment().get_template("landscape.html.j2").render(
        title=title, notes=notes, surfaces=surfaces, numbers=_numbers(planes) if planes else None, turned=planes,
        floating=any(mark.distance > OFF_PLANE for surface in planes for mark in surface.marks),
        table=[_row(surface) for surface in surfaces], figures=figures, protocols=titles,
    )  # fmt: skip
    files = {f"{name}.svg": figure for name, figure in figures.items()} | {"landscape.html": page}
    make_folder(folder)
    for name, text in files.items():
        write_text(folder / name, text)
    return folder / "landscape.html"


def _numbers(surfaces: Sequence[Surface]) -> dict[str, Any]:
    """Return the numbers for the page's script; infinite losses and NaN become null."""
    scale, drawn = Scale.shared(surfaces), []
    for surface in surfaces:
        rows = [[float(f"{z:.5g}") if np.isfinite(z) else None for z in row] for row in surface.loss]
        marks = [asdict(mark) | {"off": mark.distance > OFF_PLANE} for mark in surface.marks if np.isfinite(mark.loss)]
        x, y = ([float(f"{value:.6g}") for value in values] for values in (surface.x, surface.y))
        drawn.append({"title": surface.title, "axes": surface.axes, "x": x, "y": y, "loss": rows, "marks": marks})
    return {
        "colours": [to_hex(colour) for colour in colormaps[COLOUR_MAP](np.linspace(0, 1, 64))],
        "lowest": scale.lowest,
        "highest": scale.highest,
        "foot": scale.logarithmic_low,
        "logarithmic": scale.logarithmic,
        "surfaces": drawn,
    }


def _row(surface: Surface) -> dict[str, Any]:
    """Return the row of a surface in the page's table."""
    finite = surface.loss[np.isfinite(surface.loss)]
    low, high = (finite.min(), finite.max()) if len(finite) else (np.nan, np.nan)
    marks = []
    for mark in surface.marks:
        name = f"{mark.label}: " if len(surface.marks) > 1 else ""
        away = f", {mark.distance:.2g} off the plane" if mark.distance > OFF_PLANE else ""
        marks.append(f"{name}{mark.loss:.4g}{away}")
    return {"title": surface.title, "marks": marks, "low": f"{low:.4g}", "high": f"{high:.4g}",
            "infinite": int((~np.isfinite(surface.loss)).sum())}  # fmt: skip


def _panels(pictures: Sequence[Any], across: int = PANELS_ACROSS) -> tuple[Figure, list[Axes]]:
    """Make a figure with a square panel for each picture, and shared axes."""
    across = min(len(pictures), across)
    down = -(-len(pictures) // across)
    side = SIDE if across > 1 else 1.4 * SIDE
    figure = Figure(figsize=(across * side + 1.2, down * (side + 0.2) + 0.3), layout="constrained")
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for empty in panels[len(pictures) :]:
        empty.remove()
    return figure, list(panels[: len(pictures)])


def _draw_marks(axes: Axes, surface: Surface, height: str = "y") -> None:
    """Draw the models as dots at their x and `height` ("y" or "loss"), with names if there are several."""
    for mark in surface.marks:
        at = mark.x, getattr(mark, height)
        axes.plot(*at, "o", color="white", markeredgecolor="black", markersize=5)
        if len(surface.marks) > 1:
            place = (5, 5 if mark.distance > OFF_PLANE else -11)  # local models are near their server's model
            axes.annotate(mark.label, at, place, textcoords="offset points", fontsize="small",
                          bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 1})  # fmt: skip


def _is_local(surface: Surface) -> bool:
    return surface.part.startswith("client")


def _draw_profile(axes: Axes, surface: Surface, place: int, group: Sequence[Surface], scale: Scale) -> None:
    """Draw the profile of a surface in the colour of its method; clients of one method have different dashes."""
    of_method = [other.part for other in group if other.label == surface.label]
    number = of_method.index(surface.part)
    label = surface.title if _is_local(surface) else surface.label
    loss = np.ma.masked_invalid(np.maximum(surface.profile, scale.low))
    style: dict[str, Any] = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
    axes.plot(surface.x, loss, linewidth=1.6, label=label, **style)
    if len(surface.marks) > 1:
        _draw_marks(axes, surface, "loss")


def _legend(figure: Figure) -> tuple[list[Any], list[str]]:
    """Return handles and labels of all panels, each label once."""
    handles = {label: handle for axes in figure.axes for handle, label in
             zip(*axes.get_legend_handles_labels(), strict=True)}  # fmt: skip
    return list(handles.values()), list(handles)
