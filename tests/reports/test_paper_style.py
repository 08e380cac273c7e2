"""Lines of figures for papers can be told apart on white paper, in grey, and by colour-blind readers."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import fedflat as ff
from fedflat.reports.figures import INK
from fedflat.reports.paper_figures import _add_legend
from fedflat.reports.paper_style import COLOURS, PAPER, WIDTHS, entries_across, paper_styles
from support.finished_runs import Fake

ALL = [*COLOURS, INK]
# Machado, Oliveira & Fernandes 2009, table 1, severity 1.0: linear RGB as a dichromat sees it.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of sRGB, D65


def linear(colour: str) -> np.ndarray:
    """The linear red, green and blue of a colour, WCAG 2.1."""
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.1: 21 for black on white."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB; the distance of two colours is about 2.3 where an eye begins to see it."""
    t = XYZ @ rgb.clip(0, 1) / (XYZ @ np.ones(3))
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_formulas() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # WCAG's example of a grey that just fails
    np.testing.assert_allclose(lab(np.ones(3)), [100, 0, 0], atol=1e-9)
    for matrix in VISION.values():
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=2e-6)  # white and greys stay


@pytest.mark.parametrize("colour", ALL)
def test_every_line_has_contrast_to_white_paper(colour: str) -> None:
    assert contrast(colour, "#ffffff") >= 3


def test_no_two_colours_are_equally_bright_in_grey() -> None:
    for darker, lighter in pairwise(sorted(ALL, key=luminance)):
        assert contrast(darker, lighter) >= 1.3, (darker, lighter)


@pytest.mark.parametrize("vision", VISION)
def test_colours_differ_for_every_reader(vision: str) -> None:
    seen = {colour: lab(VISION[vision] @ linear(colour)) for colour in ALL}
    for one, other in combinations(ALL, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 15, (one, other)


def styles(methods: int, baselines: int = 1) -> list[dict]:
    runs = [Fake("FedAvg", 0, [0.5], more={"partition_hash": str(i), "model_hash": str(i), "data_hash": str(i)},
                 hyper={"a": i}) for i in range(baselines)]  # fmt: skip
    runs += [Fake("FedSAM", 0, [0.5], {"rho": rho}, more=runs[0].more) for rho in range(methods)]
    rows = ff.compare(runs).rows
    assert sum(row.is_baseline for row in rows) == baselines
    return paper_styles(rows)


def test_lines_differ_without_any_colour() -> None:
    drawn = styles(28, baselines=12)
    assert len({(str(style["linestyle"]), style["marker"]) for style in drawn}) == 40


def test_lines_that_follow_one_another_differ_in_everything() -> None:
    for one, other in pairwise(styles(28)):
        assert all(one[name] != other[name] for name in ("color", "linestyle", "marker", "markevery"))


def test_a_baseline_is_dashed_and_on_top() -> None:
    first, *others = styles(5)
    assert first["color"] == INK
    assert first["linestyle"] != "-"
    assert all(first["zorder"] > other["zorder"] for other in others)


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("labels", [["FedAvg"], ["FedAvg", "FedSAM", "Scaffold"] * 3, ["FedSAM(rho=0.1, lr=0.05)"] * 8])
def test_a_legend_is_no_wider_than_its_figure(size: str, labels: list[str]) -> None:
    """The widths that are assumed for letters and samples of lines are enough for those that are drawn."""
    with rc_context(PAPER):
        figure = Figure(figsize=(WIDTHS[size], 2), layout="constrained")
        figure.subplots()
        _add_legend(figure, [(0, 0, label, {"color": INK}) for label in labels], size)
        FigureCanvasAgg(figure).draw()
        box = figure.legends[0].get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        axes = figure.axes[0].get_tightbbox()
        assert box.y0 >= -0.5
        assert box.y1 <= axes.y0 + 0.5
        assert axes.height >= 1.2 * figure.dpi
    assert entries_across(labels, size) >= 1
