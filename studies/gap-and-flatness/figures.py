"""The figure of docs/gap_study.md as SVG; the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedflat.reports.figures import COLOURS, INK, STYLE, svg

from .analysis import Contrast, estimate
from .plan import GAPS

MARKERS = "osD^"
SHIFT = 0.06  # points, by which contrasts of one base are moved apart


def lead_figure(every: Sequence[Contrast]) -> str:
    """Return a figure of every contrast's lead with its interval at 95 % against the measured gap of its base."""
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhline(0, color=INK, linewidth=0.8)
        for i, one in enumerate(every):
            x = [float(one.base_gap[gap].mean()) + SHIFT * (i - (len(every) - 1) / 2) for gap in GAPS]
            leads = [found for gap in GAPS if (found := estimate(one.lead[gap]))]
            style = {"color": COLOURS[i + 1], "marker": MARKERS[i % len(MARKERS)]}
            axes.plot(x, [lead.mean for lead in leads], linewidth=1, label=f"{one.flat} over {one.base}", **style)
            axes.vlines(x, [lead.low for lead in leads], [lead.high for lead in leads], color=style["color"])
        axes.set(xlabel="gap of the base: training minus test accuracy, points", ylabel="lead over the base, points")
        axes.legend(frameon=False, fontsize="small")
        return svg(figure, "lead over the base against the gap")
