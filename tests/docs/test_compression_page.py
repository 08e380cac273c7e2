"""The tables on compressed messages say what was measured, of all runs of the recipe."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, log

import pytest

from benchmarks import compression
from benchmarks.compression import Measured, Result, planned, read
from docs.compression_tables import at_loss, largest_error, ratio_table, ratios, value_table, verdict_table


def at(t: int, loss: float, trace: float) -> Measured:
    return Measured(t, loss, {"trace": trace, "lambda_max": trace / 10, "sharpness": 0.125},
                    {"trace": trace / 50, "lambda_max": trace / 1e5, "sharpness": None})  # fmt: skip


WAY = (at(5, 2.0, 10.0), at(10, 1.0, 40.0), at(15, 1.2, 70.0), at(20, 0.5, 20.0))
RESULTS = [
    *(Result("full", "FedAvg", seed, 400, 0.9, 100, WAY[-1], WAY) for seed in range(3)),
    *(Result("few", "FedAvg", seed, 40, 0.8 + seed / 100, 100, at(20, 1.5, trace), ())
      for seed, trace in enumerate((30.0, 40.0, 50.0))),
    *(Result("gone", "FedAvg", seed, 4, *((0.5, 100, at(20, 3.0, 10.0)) if seed else ())) for seed in range(3)),
]  # fmt: skip


def test_a_measure_at_a_training_loss_lies_between_those_around_it_when_it_was_first_reached() -> None:
    """Half of the way from 2 to 1 is the geometric mean of 10 and 40; the rise to 1.2 afterwards does not count."""
    assert at_loss(WAY, 1.5, "trace") == pytest.approx((log(20), 0.02))
    assert at_loss(WAY, 1.1, "trace") == pytest.approx((0.1 * log(10) + 0.9 * log(40), 0.02))
    assert at_loss(WAY, 0.4, "trace") is None
    assert at_loss(WAY, 2.1, "trace") is None


def test_ratios_are_geometric_means_with_intervals_of_three_seeds() -> None:
    """30, 40 and 50 against 20, also at equal loss: the mean logarithm, and 4.303 standard errors around it.

    Two equal ratios of one half have no spread over seeds, and the errors of their four measures: 2 % of a trace.
    """
    logs = [log(30 / 20), log(40 / 20), log(50 / 20)]
    mean = sum(logs) / 3
    half = 4.3027 * (sum((one - mean) ** 2 for one in logs) / 2 / 3) ** 0.5
    text = f"{exp(mean):.2f} ({exp(mean - half):.2f} to {exp(mean + half):.2f})"
    least = (4 * 0.02**2) ** 0.5 / 2
    trace = f"0.50 ({exp(log(0.5) - least):.2f} to {exp(log(0.5) + least):.2f})"
    rows = {row[1]: row[2:] for row in ratio_table(RESULTS).rows}
    assert rows == {"`few`": (text,) * 4, "`gone`": (trace, "–", "0.50 (0.50 to 0.50)", "–")}
    assert {(one.message, one.equal_loss): one.verdict for one in ratios(RESULTS)} == {
        ("few", False): "sharper", ("few", True): "sharper", ("gone", False): "flatter", ("gone", True): "",
    }  # fmt: skip


def test_verdicts_are_counted_over_methods() -> None:
    other = [replace(one, method="FedSAM") for one in RESULTS if one.message == "full"]
    other += [replace(one, message="few", method="FedSAM") for one in RESULTS if one.message == "full"]
    assert verdict_table([*RESULTS, *other]).rows == [
        ("`few`", *("1 sharper, 1 in doubt",) * 4), ("`gone`", "1 flatter", "–", "1 flatter", "–"),
    ]  # fmt: skip
    assert largest_error(RESULTS) == "at most 2.0 % of a trace and 0.01 % of an eigenvalue."


def test_lines_have_what_is_sent_and_where_it_ends() -> None:
    assert value_table(RESULTS).rows == [
        ("FedAvg", "`full`", "400", "90.0 ± 0.0", "0.500 ± 0.000", "20 ± 0", "2 ± 0", "0.125 ± 0"),
        ("FedAvg", "`few`", "40", "81.0 ± 1.0", "1.500 ± 0.000", "40 ± 10", "4 ± 1", "0.125 ± 0"),
        ("FedAvg", "`gone`", "4", "diverged (1 of 3)", "–", "–", "–", "–"),
    ]


def test_every_run_of_the_recipe_was_measured_once_and_full_ones_along_the_way() -> None:
    found = read(json.loads(compression.FILE.read_text()))
    assert [(one.message, one.method, one.seed) for one in found] == [
        (message, spec.method.label, spec.seed) for message, spec in planned()
    ]
    assert {len(one.way) for one in found} == {0, 20}
    assert all((len(one.way) == 20) == (one.message == "full") for one in found if one.end is not None)
