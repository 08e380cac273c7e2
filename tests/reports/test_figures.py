from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np

from fedflat.reports.figures import _smooth, partition_map
from fedflat.reports.partition import shade_map


def test_smoothing_is_the_mean_of_the_last_five() -> None:
    values = np.random.default_rng(0).random(12)
    expected = [values[max(0, i - 4) : i + 1].mean() for i in range(12)]
    np.testing.assert_allclose(_smooth(values), expected)


def test_heat_map_is_an_svg_of_bounded_size() -> None:
    for clients in (5, 3000):
        svg = partition_map(np.random.default_rng(0).integers(9, size=(clients, 10)), "title")
        assert ET.fromstring(svg).tag.endswith("svg")
        assert len(svg) < 100_000


def test_shades_on_a_terminal() -> None:
    lines = shade_map(np.array([[4, 0], [0, 2], [1, 0]]), width=80)
    assert lines[:2] == ["class  0  █ ░", "class  1   ▒ "]
    assert "first 10 of 50" in shade_map(np.ones((50, 2), dtype=int), width=20)[-1]
