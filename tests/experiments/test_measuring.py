"""The model of a finished run, read from its folder to be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.measuring import LoadedRun, shown_runs
from fedflat.metrics.accuracy import score
from support.studies import run_spec

RUN: dict[str, Any] = {"rounds": 1, "flatness": [], "executor": "sequential"}


def test_a_model_of_convolutions_is_measured_with_its_weights_in_order(tmp_path: Path) -> None:
    """The accuracy of what is read is that which the run reported."""
    runner.run(run_spec(model={"name": "cnn", "options": {"width": 3}}, **RUN), tmp_path / "run")
    (run,) = shown_runs([tmp_path / "run"])
    loaded = LoadedRun()
    w, sim = loaded.model(run), loaded.simulation(run)
    found = score(sim.objective, w, *sim.data.test, sim.data.preparation)
    assert found.accuracy == run.stored.summary["test_accuracy_last"]
    assert found.mean_loss == pytest.approx(run.stored.summary["test_loss_last"], rel=1e-6)


def test_a_run_whose_clients_keep_a_part_has_no_model_to_measure(tmp_path: Path) -> None:
    runner.run(run_spec(model={"name": "mlp", "options": {"hidden": [4]}, "keep": ["*.bias"]}, **RUN), tmp_path / "run")
    with pytest.raises(InputError, match="there is none of the server"):
        LoadedRun().model(shown_runs([tmp_path / "run"])[0])
