"""Curves: what is smoothed, what is left out, and what the axes say."""

from __future__ import annotations

import re
from math import inf, nan

import numpy as np
import pytest

import fedflat as ff
from fedflat.reports.curves import (
    accuracy_curves,
    aggregation_curves,
    by_method,
    cost_curves,
    loss_curves,
    smoothed,
    smoothing_in_words,
    svgs,
    window_of,
)
from support.finished_runs import Fake


def compared(n: int, **columns: list[float]) -> ff.reports.Comparison:
    values = list(np.linspace(0.1, 0.9, n))
    return ff.compare([Fake(method, 0, values, columns=columns) for method in ("FedAvg", "FedSAM")])


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_smoothing_is_the_mean_of_the_last_ones(window: int) -> None:
    values = np.random.default_rng(0).random(12)
    expected = [values[max(0, i - window + 1) : i + 1].mean() for i in range(12)]
    np.testing.assert_allclose(smoothed(values, window), expected)


def test_a_gap_stays_a_gap_and_spoils_no_neighbour() -> None:
    found = smoothed(np.array([1.0, nan, 3.0]), 2)
    np.testing.assert_array_equal(found, [1.0, nan, 3.0])


@pytest.mark.parametrize(("evaluations", "window"), [(1, 1), (6, 1), (39, 1), (40, 2), (100, 5), (1000, 5)])
def test_short_runs_are_not_smoothed_away(evaluations: int, window: int) -> None:
    """A twentieth of the evaluations, at most five; the page says which."""
    assert window_of(compared(evaluations)) == window
    assert smoothing_in_words(window) == (
        f"Each point is the mean of the last {window} evaluations" if window > 1 else "Nothing is smoothed"
    )


def test_rounds_have_whole_ticks_and_every_curve_its_label() -> None:
    for svg in svgs(accuracy_curves(compared(6))):
        ticks = texts(svg)[: texts(svg).index("communication round")]
        assert ticks
        assert all(tick.isdecimal() for tick in ticks), ticks
        assert {"FedAvg", "FedSAM"} <= set(texts(svg))


def test_losses_are_drawn_if_they_are_there() -> None:
    assert svgs(loss_curves(compared(6))) == []
    assert len(svgs(loss_curves(compared(6, test_loss=[1.0] * 6)))) == 1
    both = svgs(loss_curves(compared(6, test_loss=[1.0] * 6, train_loss=[2.0, None, 1.0, 1.0, 1.0, 1.0])))
    assert ["training loss" in texts(svg) for svg in both] == [False, True]


def test_aggregation_errors_are_drawn_at_the_rounds_in_which_they_were_taken() -> None:
    assert svgs(aggregation_curves(compared(6, test_loss=[1.0] * 6))) == []
    some = {f"aggregation_error_{name}": [None, 0.2, None, 0.1, None, 0.3] for name in ("mean", "largest")}
    largest, mean = svgs(aggregation_curves(compared(6, **some)))
    assert "largest of a layer" in texts(largest)
    assert "mean over layers" in texts(mean)
    assert {"aggregation error", "communication round", "FedAvg", "FedSAM"} <= set(texts(mean))


def test_an_error_of_rounding_beside_a_real_one_is_on_a_logarithmic_axis() -> None:
    runs = [Fake(method, 0, [0.5, 0.6], columns={"aggregation_error_mean": [size, 2 * size]})
            for method, size in (("FedAvg", 1e-16), ("FedSAM", 0.05))]  # fmt: skip
    [svg] = svgs(aggregation_curves(ff.compare(runs)))
    assert "1e-10" in texts(svg)


@pytest.mark.parametrize("losses", [[inf] * 6, [nan] * 6, [1e308] * 6, [2.0, inf, 1.0, 1e300, 0.5, 0.1], [0.0] * 6])
def test_a_loss_that_is_no_number_is_a_gap(losses: list[float]) -> None:
    [svg] = svgs(loss_curves(compared(6, test_loss=losses)))
    assert svg.startswith("<svg")


def test_a_wide_range_of_losses_is_logarithmic() -> None:
    """Powers of ten are the ticks of a logarithmic axis, as plain numbers."""
    wide, narrow = ([1000.0, 100, 10, 1, 0.1, 0.01], [1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    ticks = [texts(svgs(loss_curves(compared(6, test_loss=some)))[0]) for some in (wide, narrow)]
    assert [{"0.1", "10", "100"} <= set(some) for some in ticks] == [True, False]
    assert not [text for some in ticks for text in some if "$" in text]


def test_costs_have_their_units() -> None:
    gradients, sent = svgs(cost_curves(compared(6)))
    assert "minibatch gradients of all clients" in texts(gradients)
    assert any(text.endswith(" B") for text in texts(sent))


@pytest.mark.parametrize(("methods", "seeds", "own_panels"), [(3, 2, 0), (4, 2, 3), (4, 1, 0)])
def test_bands_are_in_one_panel_where_they_can_be_told_apart_else_in_one_for_each_method(
    methods: int, seeds: int, own_panels: int
) -> None:
    """Each beside the baseline's band, and all with the same ticks, although their values differ."""
    names = ("FedAvg", "FedSAM", "FedGF", "FedDyn")[:methods]
    runs = [Fake(name, seed, [0.1 + 0.1 * i, 0.2 + 0.2 * seed + 0.1 * i])
            for i, name in enumerate(names) for seed in range(seeds)]  # fmt: skip
    comparison = ff.compare(runs)
    together = svgs(accuracy_curves(comparison))[0]
    assert len(re.findall("PolyCollection_", together)) == (methods if methods <= 3 else 0)
    drawn = by_method(comparison)
    assert [texts(svg)[-1] for svg in drawn] == list(names[1:])[:own_panels]
    assert {len(re.findall("PolyCollection_", svg)) for svg in drawn} <= {2}
    assert len({tuple(texts(svg)[:-1]) for svg in drawn}) <= 1
