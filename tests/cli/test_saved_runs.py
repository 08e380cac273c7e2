"""The commands on a run that was saved from Python."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import fedflat as ff


@pytest.fixture(scope="module")
def runs() -> list[ff.Run]:
    """Runs in memory, of two methods."""
    data = ff.data.load("digits", clients=5)
    return [ff.Simulation("mlp", data, method, rounds=2).run() for method in (ff.methods.FedAvg(), ff.methods.FedSAM())]


@pytest.mark.slow
def test_a_report_of_saved_runs(fedflat, runs: list[ff.Run], tmp_path: Path) -> None:
    """They have no name of their own folder, so the report's is made from their settings."""
    for name, run in zip(("a", "b"), runs, strict=True):
        run.save(tmp_path / name)
    code, out, err = fedflat("report a b")
    assert (code, err) == (0, "")
    assert "FedAvg" in out
    assert "FedSAM" in out
    fedflat("report a")
    fedflat("report b a")
    assert len(list((tmp_path / "runs").glob("report-*/report.html"))) == 2


@pytest.mark.parametrize("command", ["flatness", "landscape", "resume"])
def test_what_needs_the_data_says_what_to_do(fedflat, runs: list[ff.Run], tmp_path: Path, command: str) -> None:
    runs[0].save(tmp_path / "saved")
    code, _, err = fedflat(f"{command} saved")
    assert code == 2
    assert err.startswith("fedflat: saved was saved from Python and keeps neither data nor configuration; in Python ")
    assert err.count("\n") == 1


def test_a_saved_run_is_exported_as_any_other(fedflat, runs: list[ff.Run], tmp_path: Path) -> None:
    """Its summary has the arguments of its model."""
    runs[0].save(tmp_path / "saved")
    code, _, err = fedflat("export saved out")
    assert (code, err) == (0, "")
    loaded = runpy.run_path(str(tmp_path / "out" / "load.py"))["model"]
    for own, trained in zip(loaded.parameters(), runs[0].model.parameters(), strict=True):
        assert torch.equal(own, trained)


def test_the_line_that_is_advised_works(runs: list[ff.Run], tmp_path: Path) -> None:
    runs[0].save(tmp_path / "saved")
    data = ff.data.load("digits", clients=5)
    found = ff.flatness(ff.load_run(tmp_path / "saved").model, data, ["gradient-norm"])
    assert dict(found) == dict(ff.flatness(runs[0].model, data, ["gradient-norm"]))
