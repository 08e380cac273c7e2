from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from benchmarks.host import Elsewhere, Here, in_a_process_of_its_own
from benchmarks.parts import parts
from benchmarks.results import Results, Settings, described
from benchmarks.suite import measure
from fedflat.core.native_libraries import SWITCH

pytestmark = pytest.mark.slow

QUICK = Settings(repeats=2, quick=True)


def test_a_part_is_raced_and_written(tmp_path: Path) -> None:
    """In two processes, as the plain loop has the allocator as it is."""
    told: list[str] = []
    out, threads = tmp_path / "results.json", torch.get_num_threads()
    results = measure(["W3"], QUICK, Results(described(QUICK)), out, lambda who, *_: told.append(who))
    assert Results.load(out).every == results.every
    assert [one.name for one in results.every] == ["bare-default", "FedAvg", "FedSAM"]
    assert all(len(one.cpu) == len(one.wall) == 2 and min(one.cpu) > 0 for one in results.every)
    assert [one.facts["allocator"] for one in results.every] == ["default", "tuned", "tuned"]
    assert told == ["W3: bare-default", "W3: FedAvg", "W3: FedSAM"] * 3
    assert results.parts["W3"]["steps"] == 10
    assert torch.get_num_threads() == threads


def test_a_contestant_that_cannot_be_timed_elsewhere_ends_the_benchmark(capfd: pytest.CaptureFixture[str]) -> None:
    elsewhere = Elsewhere(quick=True, threads=1)
    try:
        with pytest.raises(RuntimeError, match="nobody of W3"):
            elsewhere.facts("W3", "nobody")
    finally:
        elsewhere.close()
    assert "StopIteration" in capfd.readouterr().err


def test_contestants_are_prepared_once_and_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    here, closed = Here(parts(quick=True)), []
    assert here.facts("W3", "FedAvg") is here.facts("W3", "FedAvg")
    monkeypatch.setattr("fedflat.engine.simulation.Simulation.close", lambda sim: closed.append(sim.rounds))
    here = Here(parts(quick=True))
    here.facts("W3", "FedAvg")
    here.close()
    assert len(closed) == 1


def test_a_process_of_its_own_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "default")
    assert in_a_process_of_its_own(os.getpid) != os.getpid()
