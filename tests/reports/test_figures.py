from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

import fedflat as ff
from fedflat.reports.curves import accuracy_curves, svgs
from fedflat.reports.figures import (
    COLOURS,
    INK,
    differences,
    line_styles,
    nearest_ascending,
    panels,
    partition_map,
    spread,
    themed,
)
from fedflat.reports.plans import shade_map
from support.finished_runs import Fake, split_data

METHODS = [Fake(method, 0, [0.5]) for method in ("FedAvg", "FedSAM", "FedGF")]


def test_heat_map_is_an_svg_of_bounded_size() -> None:
    for clients in (5, 3000):
        svg = partition_map(np.random.default_rng(0).integers(9, size=(clients, 10)), "title")
        assert ET.fromstring(svg).tag.endswith("svg")
        assert len(svg) < 100_000


def test_shades_on_a_terminal() -> None:
    lines = shade_map(np.array([[4, 0], [0, 2], [1, 0]]), width=80)
    assert lines[:2] == ["class  0  █ ░", "class  1   ▒ "]
    assert "first 10 of 50" in shade_map(np.ones((50, 2), dtype=int), width=20)[-1]


@given(st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=12), st.floats(0.001, 0.2))
def test_labels_are_apart_and_in_the_order_of_the_curves(places: list[float], gap: float) -> None:
    found = spread(np.array(places), gap)
    ranked = found[np.argsort(places, kind="stable")]
    assert (np.diff(ranked) >= gap - 1e-9).all()
    if gap * (len(places) - 1) <= 1:
        assert found.min() >= -1e-9
        assert found.max() <= 1 + 1e-9


def test_labels_with_room_stay_where_the_curves_end() -> None:
    np.testing.assert_allclose(spread(np.array([0.9, 0.1, 0.5]), 0.1), [0.9, 0.1, 0.5])
    np.testing.assert_allclose(spread(np.array([0.5, 0.5]), 0.1), [0.45, 0.55])


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_the_nearest_ascending_numbers_are_scikit_learns(values: list[float]) -> None:
    np.testing.assert_allclose(nearest_ascending(np.array(values)), isotonic_regression(values), atol=1e-12)


def test_a_baseline_is_drawn_over_the_others_and_dashed() -> None:
    first, *others = line_styles(ff.compare(METHODS).rows)
    assert first["color"] == INK
    assert first["linestyle"] != "-"
    assert all(first["zorder"] > other["zorder"] for other in others)
    assert len({other["color"] for other in others}) == 2


def test_ink_and_colours_are_the_pages() -> None:
    found = themed(f'<path style="stroke: {INK}; fill: {COLOURS[1]}"/><path style="fill: #123456"/>')
    assert found == '<path style="stroke: currentColor; fill: var(--curve-1, #0072b2)"/><path style="fill: #123456"/>'


def test_no_colour_of_a_figure_is_fixed() -> None:
    """All colours of a page's figure can be exchanged, so that it can be read on a dark page."""
    svg = differences(ff.compare([*METHODS, *(Fake(run.method, 1, [0.6]) for run in METHODS)]))
    fixed = set(re.findall(r"(?<!, )#[0-9a-fA-F]{6}", svg))
    assert fixed == set()


def test_a_difference_that_may_be_none_is_grey() -> None:
    """FedSAM's interval is +0.1 to +0.1, FedGF's has zero in it."""
    runs = [Fake(method, seed, [0.5 + gain * (1 if method == "FedSAM" else seed - 0.5)])
            for method, gain in (("FedAvg", 0), ("FedSAM", 0.1), ("FedGF", 0.1)) for seed in (0, 1)]  # fmt: skip
    comparison = ff.compare(runs)
    assert [row.difference and row.difference.mean for row in comparison.rows] == [
        None, pytest.approx(0.1), pytest.approx(0, abs=1e-9),
    ]  # fmt: skip
    assert differences(comparison).count("stroke-opacity: 0.55") >= 1
    assert "stroke-opacity: 0.55" not in differences(ff.compare([r for r in runs if r.method != "FedGF"]))


def test_each_task_has_a_figure_of_its_own_in_which_labels_are_short() -> None:
    runs = [
        Fake(method, 0, [0.5], {"rho": rho}, data=split_data("digits", 50, ff.Dirichlet(alpha=alpha)))
        for alpha in (0.1, 1.0) for method, rho in (("FedAvg", 0), ("FedSAM", 0.1), ("FedSAM", 0.2))
    ]  # fmt: skip
    comparison = ff.compare(runs)
    assert comparison.rows[-1].label == "FedSAM(rho=0.2, alpha=1.0)"
    found = [(name, names) for name, _, names in panels(comparison.rows)]
    assert found == [(f"alpha={a}", ["FedAvg", "FedSAM(rho=0.1)", "FedSAM(rho=0.2)"]) for a in (0.1, 1.0)]
    assert [name for name, _, _ in panels(ff.compare(METHODS).rows)] == [""]


def test_what_stands_in_a_figure_is_escaped() -> None:
    """Names of data sets come from files; the name of a task is in the title, in text and in an attribute."""
    harm = """d" onload="alert(1)'><script>alert(1)</script>"""
    runs = [Fake("FedAvg", 0, [0.5, 0.6], data=split_data(name)) for name in (harm, "other")]
    for svg in svgs(accuracy_curves(ff.compare(runs))):
        root = ET.fromstring(svg)
        assert "onload" not in root.attrib
        assert not [part for part in root.iter() if part.tag.endswith("script")]
    assert any("onload" in ET.fromstring(svg).attrib["aria-label"] for svg in svgs(accuracy_curves(ff.compare(runs))))
