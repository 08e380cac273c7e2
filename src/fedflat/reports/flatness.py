"""Flatness in a report: measured values with error bars, curves of all methods in one figure, rank correlations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import atanh, sqrt, tanh
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from .columns import Column, measure_cell, measure_title
from .comparison_data import ComparisonData, Row
from .comparison_data import accuracy as accuracy_of
from .figures import BAND, INLINE, MOST_BANDS, End, inline, label_ends, line_styles, panel, panels, set_logarithmic

ERRORS = (
    "one seed: ± half of a 95 % interval, or the residual of an eigenvalue; several: ± standard deviation over seeds; "
    "in brackets, on how many of all training samples"
)
SHOWN = 1e-8  # lower end of a logarithmic axis, as a share of the highest value
CAUTION = (
    "A rank correlation over a few methods and seeds describes these runs and explains nothing: runs of one method are "
    "not independent, every method minimises another quantity, and several measures change when weights are rescaled "
    "although the network does not (Dinh et al., 2017; Andriushchenko et al., 2023)."
)


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of a measure with test accuracy over all runs."""

    measure: str
    rho: float
    # The 95 % interval that would hold if the runs were independent (Fieller et al., 1957); None for +-1.
    interval: tuple[float, float] | None
    runs: int


def measured(comparison: ComparisonData) -> list[str]:
    """Return the names of the values that were measured on every run; values of single layers are left out."""
    runs = comparison.runs
    return [name for name in runs[0].flatness if "/" not in name and all(name in run.flatness for run in runs)]


def protocols(comparison: ComparisonData) -> list[str]:
    """Describe how each measure was computed."""
    return list(dict.fromkeys(finding.protocol for run in comparison.runs for finding in run.flatness.findings))


def flatness_columns(comparison: ComparisonData) -> list[Column]:
    """Return the column of methods and a column per measured value; no column if no value was measured on every run."""
    names = measured(comparison)
    first = Column("method", "class name", lambda row: row.label)
    return [first, *(Column(measure_title(name), "", measure_cell(name)) for name in names)] if names else []


def correlations(comparison: ComparisonData) -> list[Correlation]:
    """Return the rank correlation of each measure with test accuracy over all runs; none for fewer than four runs."""
    runs = comparison.runs
    accuracy = np.array([accuracy_of(run, comparison.protocol) for run in runs])
    of_measures = []
    for name in measured(comparison) if len(runs) >= 4 else ():
        values = np.array([run.flatness[name].value for run in runs])
        if np.isfinite(values).all() and np.ptp(values) > 0 and np.ptp(accuracy) > 0:
            from scipy.stats import spearmanr  # here and below, because scipy takes half a second to import

            rho = float(spearmanr(values, accuracy).statistic)
            of_measures.append(Correlation(measure_title(name), rho, _interval(rho, len(runs)), len(runs)))
    return of_measures


def _interval(rho: float, n: int) -> tuple[float, float] | None:
    """Return the interval of a rank correlation of n pairs, by Fisher's transform with variance 1.06 / (n - 3)."""
    from scipy.special import ndtri

    if abs(rho) > 1 - 1e-9:
        return None
    half = float(ndtri(0.975)) * sqrt(1.06 / (n - 3))
    return tanh(atanh(rho) - half), tanh(atanh(rho) + half)


def curve_figures(comparison: ComparisonData) -> list[CurveDrawing]:
    """Return a figure of every curve that all runs have, for each task with all its rows."""
    runs = comparison.runs
    names = [name for name in runs[0].flatness.curves if all(name in run.flatness.curves for run in runs)]
    return [CurveDrawing(name, *each) for name in names for each in panels(comparison.rows)]


@dataclass(frozen=True)
class CurveDrawing:
    """The measured curve `name` of several rows, whose labels are `called`, in one figure."""

    name: str
    task: str
    rows: Sequence[Row]
    called: Sequence[str]

    @property
    def title(self) -> str:
        title = measure_title(self.name)
        return f"{title}, {self.task}" if self.task else title

    def svg(self) -> str:
        """Draw the figure for a page, with the label of each curve at its end."""
        with rc_context(INLINE):
            figure, axes = panel(len(self.rows))
            label_ends(axes, self.draw(axes, line_styles(self.rows), len(self.rows) <= MOST_BANDS))
            return inline(figure, measure_title(self.name))

    def draw(self, axes: Axes, styles: Sequence[dict[str, Any]], has_bands: bool = True) -> list[End]:
        """Draw the curves in the styles of the rows; return the ends of those that have a finite value."""
        ends = []
        for row, label, style in zip(self.rows, self.called, styles, strict=True):
            curves = [run.flatness.curves[self.name] for run in row.runs]
            x, error = np.array(curves[0].x), curves[0].error
            with np.errstate(all="ignore"):  # a loss may be infinite
                # Curves whose x differ, such as densities, are interpolated at the x of the first one.
                ys = np.array([np.interp(x, curve.x, curve.y) for curve in curves])
                y, band = ys.mean(0), None if error is None else np.array(error)
                band = ys.std(0, ddof=1) if len(curves) > 1 else band
            axes.plot(x, y, **style)
            if band is not None and has_bands:
                axes.fill_between(x, y - band, y + band, color=style["color"], alpha=BAND, linewidth=0)
            if np.isfinite(y).any():
                last = np.flatnonzero(np.isfinite(y))[-1]
                ends.append((float(x[last]), float(y[last]), label, style))
        axes.set(xlabel=curves[0].x_label, ylabel=curves[0].y_label)
        if curves[0].logarithmic:
            heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
            highest = float(np.max(heights, where=np.isfinite(heights), initial=0.0))
            if highest > 0:
                axes.set(ylim=(SHOWN * highest, 3 * highest))
            set_logarithmic(axes)
            ends = [end for end in ends if end[1] > 0]
        return ends
