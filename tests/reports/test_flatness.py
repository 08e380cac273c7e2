"""What the report says of flatness."""

from __future__ import annotations

import re
from dataclasses import replace
from math import atanh, sqrt

import numpy as np
import pytest

import fedflat as ff
from fedflat.metrics.flatness import Curve, Finding, Flatness, Measured
from fedflat.reports.flatness import correlations, curve_figures, flatness_columns, protocols
from fedflat.reports.tables import flatness_table

METHODS = (ff.methods.FedAvg(), ff.methods.FedSAM(), ff.methods.FedProx(), ff.methods.FedAvgM(), ff.methods.FedDyn())


def measured(value: float, accuracy: float, run: ff.Run) -> ff.Run:
    """`run` with a made-up accuracy, a measure and a curve."""
    curve = Curve([0.0, 1.0], [value, 2 * value], "radius", "loss", [0.1, 0.1])
    finding = Finding(
        "Steepness", "Steepness; of nothing", {"steepness": Measured(value, 0.25, "interval")}, {"c": curve}
    )
    return replace(run, flatness=Flatness((finding,)), summary=run.summary | {"test_accuracy": accuracy})


@pytest.fixture(scope="module")
def runs() -> list[ff.Run]:
    data = ff.data.load("digits", clients=5)
    return [ff.Simulation("mlp", data, method, rounds=1, seed=0).run() for method in METHODS]


def compared(runs: list[ff.Run], values: list[float], accuracies: list[float]) -> ff.reports.Comparison:
    return ff.compare([measured(*numbers) for numbers in zip(values, accuracies, runs, strict=True)])


def test_one_seed_has_the_measures_own_error(runs) -> None:
    comparison = compared(runs, [1, 2, 3, 4, 5], [0.5, 0.4, 0.3, 0.2, 0.1])
    _, column = flatness_columns(comparison)
    assert [column.cell(row) for row in comparison.rows][:2] == ["1.00 ± 0.25", "2.00 ± 0.25"]
    assert protocols(comparison) == ["Steepness; of nothing"]


def test_several_seeds_have_their_spread(runs) -> None:
    """Two seeds with 1 and 3: 2 ± sqrt(2)."""
    two = [measured(1, 0.5, runs[0]), measured(3, 0.5, replace(runs[0], seed=1))]
    _, column = flatness_columns(ff.compare(two))
    assert [column.cell(row) for row in ff.compare(two).rows] == ["2.0 ± 1.4"]


def test_what_was_not_measured_on_every_run_is_left_out(runs) -> None:
    comparison = ff.compare([measured(1, 0.5, runs[0]), runs[1]])
    assert flatness_columns(comparison) == []
    assert curve_figures(comparison) == []
    assert correlations(comparison) == []


def test_numbers_of_single_layers_are_no_columns(runs) -> None:
    own = {"error": Measured(1.0), "error/encoder.query": Measured(2.0)}
    run = replace(runs[0], flatness=Flatness((Finding("Error", "an error", own),)))
    assert [column.title for column in flatness_columns(ff.compare([run]))] == ["method", "error"]
    assert [str(column.header) for column in flatness_table({"run": run.flatness}).columns] == ["run", "error"]


def test_rank_correlation_is_spearmans(runs) -> None:
    """rho = 1 - 6 sum d^2 / (n (n^2 - 1)) for ranks without ties; Fisher's interval with variance 1.06 / (n - 3)."""
    values, accuracies = [1.0, 20.0, 3.0, 400.0, 50.0], [0.3, 0.2, 0.5, 0.1, 0.4]
    [found] = correlations(compared(runs, values, accuracies))
    ranks = [np.argsort(np.argsort(some)) for some in (values, accuracies)]
    rho = 1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum() / (5 * 24)
    assert found.rho == pytest.approx(rho)
    low, high = found.interval
    assert (atanh(high) - atanh(low)) / 2 == pytest.approx(1.959964 * sqrt(1.06 / 2), rel=1e-6)
    assert (found.measure, found.runs) == ("steepness", 5)


def test_a_perfect_order_has_no_interval(runs) -> None:
    [found] = correlations(compared(runs, [1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.5]))
    assert (found.rho, found.interval) == (pytest.approx(1), None)


def test_few_runs_and_constants_have_no_correlation(runs) -> None:
    assert correlations(compared(runs[:3], [1, 2, 3], [0.1, 0.2, 0.3])) == []
    assert correlations(compared(runs, [1] * 5, [0.1, 0.2, 0.3, 0.4, 0.5])) == []


@pytest.mark.slow
def test_the_page_has_numbers_protocols_curves_correlation_and_caution(runs, tmp_path) -> None:
    page = compared(runs, [1, 2, 3, 4, 5], [0.5, 0.4, 0.3, 0.2, 0.1]).to_html(tmp_path / "page.html").read_text()
    assert "<h2>Flatness</h2>" in page
    assert "1.00 ± 0.25" in page
    assert "Steepness; of nothing" in page
    assert re.search(r'<figure class="flatness-curve"><div class="panels"><svg', page)
    assert "-1.00" in page
    assert "explains nothing" in page
    plain = ff.compare(runs).to_html(tmp_path / "plain.html").read_text()
    assert "<h2>Flatness</h2>" not in plain


def test_numbers_reach_the_table(runs) -> None:
    table = compared(runs, [1, 2, 3, 4, 5], [0.5] * 5).table()
    assert table["steepness"].to_pylist() == [1, 2, 3, 4, 5]
