"""The tables of new methods in docs/methods.md say what was measured, of all runs that the file of rows asks for."""

from __future__ import annotations

import json

from benchmarks import new_methods
from benchmarks.new_methods import Result, Row, planned, read, rows
from docs.new_method_tables import (
    compared,
    difference_table,
    findings,
    is_personal,
    personal_table,
    server_table,
)
from fedflat.experiments.spec import Experiment, StudySpec
from fedflat.rounds.settings import flattened

ROWS = [
    Row("FedAvg", {"method": "FedAvg"}),
    Row("New", {"method": {"name": "FedSAM", "rho": 0.5}, "client": {"lr": 0.01}}, ("FedAvg",), "a power of ten"),
    Row("Lost", {"method": "FedCM"}, ("FedAvg",)),
    Row("Alone", {"method": "Local", "data": {"validation": 0.5}}),
    Row("Own", {"method": "Ditto", "data": {"validation": 0.5}}, ("Alone",)),
]
RESULTS = [
    *(Result("FedAvg", seed, x, 100, None, 15000, 2e6) for seed, x in enumerate((0.50, 0.52, 0.54))),
    *(Result("New", seed, x, 100, None, 30000, 3e6) for seed, x in enumerate((0.60, 0.63, 0.66))),
    Result("Lost", 0, 0.9, 100, None, 15000, 2e6), Result("Lost", 1), Result("Lost", 2, 0.9, 100, None, 15000, 2e6),
    *(Result("Alone", seed, 0.1, 100, x, 15000, 0.0) for seed, x in enumerate((0.8, 0.9, 0.7))),
    *(Result("Own", seed, 0.9, 100, x, 30000, 2e6) for seed, x in enumerate((0.9, 0.8, 0.8))),
]  # fmt: skip


def test_lines_have_mean_and_deviation_over_seeds_and_what_a_row_sets() -> None:
    table = server_table(ROWS, RESULTS)
    assert table.rows == [
        ("FedAvg", "52.0 ± 2.0", "15,000", "2 M", "", ""),
        ("New", "63.0 ± 3.0", "30,000", "3 M", "`method.rho = 0.5`, `client.lr = 0.01`", "a power of ten"),
        ("Lost", "diverged (1 of 3)", "15,000", "2 M", "", ""),
    ]
    assert [line[:2] for line in personal_table(ROWS, RESULTS).rows] == [
        ("Alone", "80.0 ± 10.0"), ("Own", "83.3 ± 5.8"),
    ]  # fmt: skip


def test_differences_are_paired_by_seed_and_called_noise_if_their_interval_contains_0() -> None:
    """10, 11 and 12 points: mean 11, deviation 1, and Student's t of two degrees of freedom is 4.303."""
    lines = {line[0]: line[1:] for line in difference_table(ROWS, RESULTS).rows}
    half = 4.3027 / 3**0.5
    assert lines["New"] == ("FedAvg", "+11.0", f"{11 - half:+.1f} to {11 + half:+.1f}", "higher")
    assert lines["Own"][3] == "within noise"
    (found,) = [one for one in compared(ROWS, RESULTS) if one.label == "Lost"]
    assert found.difference is not None
    assert found.difference.n == 2, "without the seed that diverged"


def test_the_sentence_counts_them() -> None:
    some = [row for row in ROWS if row.label != "Lost"]
    assert findings(some, RESULTS) == (
        "Of 2 differences 1 are within the noise of the seeds, and outside it 1 higher (New than FedAvg)."
    )


def test_every_planned_run_is_valid_and_was_measured_once() -> None:
    wanted = [(row.label, spec.seed) for row, spec in planned()]
    found = read(json.loads(new_methods.FILE.read_text()))
    assert [(one.label, one.seed) for one in found] == wanted
    assert len(set(wanted)) == len(wanted) == 3 * len(rows())


def test_rows_change_nothing_of_the_example_but_what_they_say() -> None:
    example = StudySpec.load(new_methods.SETTING)
    for row, spec in planned():
        named = {*row.settings, "flatness"}
        for name in Experiment.model_fields.keys() - named:
            assert getattr(spec, name) == getattr(example, name)
        assert all(getattr(spec, name) != getattr(example, name) for name in named - {"method", "flatness"})


def test_rows_are_compared_with_rows_of_their_kind_and_say_where_numbers_come_from() -> None:
    known = {row.label: row for row in rows()}
    assert len(known) == len(rows())
    for row in known.values():
        assert all(is_personal(known[other]) == is_personal(row) for other in row.beside)
        numbers = [key for key, value in flattened(row.settings).items() if not isinstance(value, str | bool)]
        assert bool(row.source) == bool(set(numbers) - {"data.validation"}), row.label
