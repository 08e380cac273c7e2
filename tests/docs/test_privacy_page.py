"""The tables of docs/privacy.md say what was measured, of all settings that the recipe has."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import privacy
from benchmarks.privacy import Audit, PrivateRun, read_audits, read_runs, recipe_settings
from docs.measured_tables import audit_table, private_accuracy_table
from fedflat.experiments.recipe import find_recipe
from fedflat.rounds.accountant import epsilon

RUNS = [
    PrivateRun("FedAvg", None, 0, 80.0, None, None, None),
    PrivateRun("FedAvg", None, 1, 82.0, None, None, None),
    PrivateRun("FedAvg", 2.0, 0, 60.0, 1.99, 4.5, 2.5),
    PrivateRun("FedSAM", 8.0, 0, 71.0, 7.99, 19.5, 1.0),
]
AUDITS = [Audit(1.0, 1.0, 1, 1e-3, 3.0, 2.0, 1.5), Audit(0.1, 2.5, 200, 1e-4, 1.99, 0.5, 0.7, 2.0)]


def test_cells_are_means_and_deviations_over_seeds() -> None:
    table = private_accuracy_table(RUNS, AUDITS)
    assert table.titles == ("", "not private", "epsilon 8", "epsilon 2")
    assert table.rows == [
        ("FedAvg", "81.0 ± 1.4", "–", "60.0"),
        ("FedSAM", "–", "71.0", "–"),
        ("noise multiplier", "–", "1.000", "2.500"),
        ("epsilon of one client replaced", "–", "19.50", "4.50"),
        ("proved at least, by canaries", "–", "–", "0.50"),
    ]
    assert audit_table(AUDITS).rows == [("1", "1", "1", "0.001", "3.000", "2.000", "1.500")]


def test_rows_come_back_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind, rows, read in (("ACCURACY", PrivateRun, RUNS, read_runs), ("AUDIT", Audit, AUDITS, read_audits)):
        monkeypatch.setattr(privacy, name, tmp_path / "rows.csv")
        privacy.write(tmp_path / "rows.csv", kind, rows)
        assert read() == rows


def test_every_run_of_the_recipe_was_measured_once() -> None:
    planned = [
        (run.method.name, None if run.privacy is None else run.privacy.epsilon, run.seed)
        for cell in find_recipe(privacy.RECIPE).cells()
        for run in cell.study().runs()
    ]
    assert sorted(map(str, planned)) == sorted(str((run.method, run.target, run.seed)) for run in read_runs())


@pytest.mark.slow
def test_what_was_audited_is_what_the_recipe_states() -> None:
    """And nobody has proved more than the accountant states of it now."""
    of_target = {one.target: one for one in read_audits() if one.target is not None}
    assert of_target.keys() == recipe_settings().keys()
    for target, (rate, noise, rounds, delta, _) in recipe_settings().items():
        found = of_target[target]
        assert (found.rate, found.noise_multiplier, found.rounds, found.delta) == (rate, noise, rounds, delta)
        assert found.proved < epsilon(rate, noise, rounds, delta) <= target
