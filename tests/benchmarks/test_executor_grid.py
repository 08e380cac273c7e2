from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks import executor_grid
from benchmarks.bare_loop import BareLoop
from benchmarks.executor_grid import EXECUTORS, PLAIN, Cell, grid_table, keep, measured
from benchmarks.workloads import WORKLOADS
from fedflat import Simulation
from fedflat.methods import FedSAM
from support.effort import chosen

TIMES = dict(zip((PLAIN, *EXECUTORS), (500.0, 1000.0, 800.0, 400.0), strict=True))
CELL = Cell("FedAvg", 200, 10, {name: {"median": time} for name, time in TIMES.items()}, 6.0,
            {"short": {"stacked": 2, "compiled": 1}, "long": {"compiled": 3}}, {"short": 0.3, "long": 4.0})  # fmt: skip


def test_a_run_has_the_seconds_of_all_its_steps_and_of_compiling() -> None:
    """10 rounds of 10 clients with 300 steps are 30,000 steps: 15 s plain, 24 s stacked, 12 + 6 compiled."""
    assert CELL.seconds(PLAIN, "short") == pytest.approx(15)
    assert CELL.seconds("compiled", "short") == pytest.approx(18)
    assert CELL.of_auto("short") == ("stacked", pytest.approx(24 / 18), pytest.approx(24 / 15))
    assert CELL.of_auto("long") == ("compiled", pytest.approx(1), pytest.approx(1206 / 1500))


def test_a_row_says_how_often_a_choice_was_made() -> None:
    [row] = grid_table({"cells": [asdict(CELL)]}).rows
    assert row[:7] == ("FedAvg", "200", "10", "500", "1000", "800", "400")
    assert row[7:] == ("stacked (2 of 3)", "1.33", "1.60", "compiled", "1.00", "0.80")


def test_a_cell_that_is_measured_again_replaces_its_row(tmp_path: Path) -> None:
    file = tmp_path / "grid.json"
    for cell in (CELL, replace(CELL, batch=32), replace(CELL, compiling=7.0)):
        keep(file, cell)
    assert [(one["batch"], one["compiling"]) for one in json.loads(file.read_text())["cells"]] == [(10, 7.0), (32, 6.0)]


@pytest.mark.slow
@pytest.mark.usefixtures(*chosen(["traced"], []))
def test_a_cell_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_grid, "STEPS", 2)
    monkeypatch.setattr(executor_grid, "ASKED", 1)
    cell = measured("FedAvg", 8, 4, repeats=2)
    assert all(cell.microseconds[name]["median"] > 0 for name in (PLAIN, *EXECUTORS))
    assert cell.compiling > 0
    assert {sum(often.values()) for often in cell.chosen.values()} == {1}


@pytest.mark.slow
def test_the_plain_loop_with_a_radius_does_what_fedsam_does() -> None:
    """All clients take part and a batch is all that a client holds, so that nothing is drawn."""
    work = replace(WORKLOADS["W3-mlp"], clients=3, samples=8, batch=8, pool=24, cohort=3, timed=3, steps=4)
    loop = BareLoop(work, channels_last=False, rho=0.3)
    sim = Simulation(work.module(), work.data(), FedSAM(rho=0.3), work.client(), rounds=2, device="cpu")
    plain = BareLoop(work, channels_last=False)
    for _ in sim:
        loop.round(3)
        plain.round(3)
    of_sam, of_sgd = (torch.nn.utils.parameters_to_vector(x.module.parameters()).detach() for x in (loop, plain))
    torch.testing.assert_close(of_sam, sim.w, rtol=1e-5, atol=1e-6)
    assert (of_sam - of_sgd).norm() > 1e-3
