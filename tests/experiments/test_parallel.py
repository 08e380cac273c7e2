"""Runs of a study at the same time: the same results and reports as one after another, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedflat.core.errors import InputError, NonFiniteError
from fedflat.engine.workers import WorkerError, process
from fedflat.experiments import studies
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.jobs import Jobs
from support.effort import in_test_all
from support.processes import children, has_ended, wait_until, workers
from support.studies import study_spec
from support.watching import Watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
    pytest.mark.usefixtures("forked_processes"),
]
WILD = {"name": "fedsam", "server_lr": 1e38}


def contents(path: Path) -> dict[str, bytes]:
    """The files that a study's results are read from, without times."""
    names = ("config.toml", "partition.parquet", "model.safetensors", "flatness.json")
    return {f"{file.parent.name}/{file.name}": file.read_bytes() for name in names for file in path.rglob(name)}


def test_side_by_side_is_one_after_another(tmp_path: Path) -> None:
    spec = study_spec(methods=["fedavg", "fedsmoo"], flatness=["sharpness"])
    alone = studies.carry_out_study(spec, tmp_path / "alone")
    together = studies.carry_out_study(spec, tmp_path / "together", watched := Watched(), jobs=Jobs(2))
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    assert len(contents(tmp_path / "alone")) == 16
    assert [(run.method, run.seed) for run in together] == [(run.method, run.seed) for run in alone]
    without = [run.metrics.drop_columns(["seconds"]) for run in (*alone, *together)]
    assert without[:4] == without[4:]
    labels = [one.label for one in spec.runs()]
    assert sorted(watched.started) == sorted((label, 0) for label in labels)
    assert sorted(watched.finished) == sorted(labels)
    assert sorted(watched.rounds) == sorted(list(range(6)) * 4)
    assert "Sharpness" in watched.measured
    assert not workers()


def test_systems_without_waitid_can_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS before Python 3.13: a suspended process is waited for, and nothing else changes."""
    monkeypatch.delattr(os, "waitid")
    spec = study_spec(methods=["fedavg"], seeds=[0, 1], rounds=2, flatness=[])
    runs = studies.carry_out_study(spec, tmp_path, jobs=Jobs(2))
    assert [run.seed for run in runs] == [0, 1]


def test_what_is_finished_is_not_computed_again_and_a_run_that_diverges_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    studies.carry_out_study(study_spec(methods=["fedavg"], seeds=[0], flatness=[]), tmp_path)
    spec = study_spec(methods=[WILD, "fedavg", "fedprox"], seeds=[0], flatness=[])
    runs = studies.carry_out_study(spec, tmp_path, watched := Watched(), jobs=Jobs(2))
    assert [run.method for run in runs] == ["FedAvg", "FedProx"]
    assert sorted(watched.started) == [("FedAvg-seed0", 6), ("FedProx-seed0", 0), ("FedSAM-seed0", 0)]
    assert watched.failed == ["FedSAM-seed0"]
    assert [t for t in watched.rounds if t] == list(range(1, 6)), "those of FedProx: no round of FedAvg, one of FedSAM"


def test_after_a_signal_every_run_is_saved_and_goes_on(tmp_path: Path) -> None:
    spec = study_spec(rounds=25, checkpoint_every=500, flatness=[], seeds=[0])
    with pytest.raises(Interrupted, match="every run that was under way is saved") as stopped:
        studies.carry_out_study(spec, tmp_path / "stopped", watched := Watched(signal_after=3), jobs=Jobs(2))
    assert stopped.value.exit_code == 130
    assert not workers()
    studies.carry_out_study(spec, tmp_path / "stopped", again := Watched())
    went_on = [done for _, done in again.started if done]
    assert went_on
    assert len(watched.rounds) + len(again.rounds) == 2 * 25, "no round is lost"
    studies.carry_out_study(spec, tmp_path / "whole")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_studies_share_one_queue_and_have_their_own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the cells of a recipe do: two processes are at work although each study has a single run."""
    queues: list[tuple[int, int]] = []
    usual = studies.carry_out_all

    def one_by_one(runs, number: int, *others):
        queues.append((len(runs), number))
        return usual(runs, 1, *others)

    monkeypatch.setattr(studies, "carry_out_all", one_by_one)
    specs = {
        tmp_path / "one": study_spec(methods=["fedavg"], seeds=[0], flatness=[]),
        tmp_path / "other": study_spec(methods=[WILD, "fedprox"], seeds=[0], flatness=[]),
    }
    found = studies.carry_out_studies(specs, watched := Watched(), jobs=Jobs(2))
    assert queues == [(3, 2)]
    assert [[(run.directory.path.parents[1], run.method) for run in runs] for runs in found] == [
        [(tmp_path / "one", "FedAvg")], [(tmp_path / "other", "FedProx")],
    ]  # fmt: skip
    assert watched.failed == ["FedSAM-seed0"]
    with pytest.raises(NonFiniteError):
        studies.carry_out_studies(specs | {tmp_path / "wild": study_spec(methods=[WILD], seeds=[0], flatness=[])})
    assert studies.stored_study(tmp_path / "other")[1]


class Signalling(Watched):
    """Sends a signal to one of two workers, once both carry out a run: one that still starts up would ignore it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number: int | None = number

    def round_ended(self, spec, result) -> None:
        super().round_ended(spec, result)
        if self.number is not None and len(self.started) - len(self.finished) == 2:
            os.kill(workers()[0], self.number)
            self.number = None


def test_a_signal_to_one_process_stops_the_study(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="every run that was under way is saved") as stopped:
        studies.carry_out_study(
            study_spec(rounds=1000, flatness=[]), tmp_path, Signalling(signal.SIGTERM), jobs=Jobs(2)
        )
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert not workers()


def test_a_process_that_is_killed_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    spec = study_spec(rounds=20, checkpoint_every=5, flatness=[])
    with pytest.raises(
        WorkerError, match=r"the process of Fed\w+-seed\d was ended by SIGKILL .* from its last checkpoint"
    ):
        studies.carry_out_study(spec, tmp_path, Signalling(signal.SIGKILL), jobs=Jobs(2))
    assert not workers()
    assert len(studies.carry_out_study(spec, tmp_path)) == 4


@in_test_all
def test_a_process_that_is_stopped_does_not_hang_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test` has this of the workers of a run, which are supervised in the same way."""
    monkeypatch.setattr(process, "SUSPENDED", 0.5)
    spec = study_spec(rounds=1000, flatness=[], seeds=[0])
    with pytest.raises(
        WorkerError,
        match=r"the process of Fed\w+-seed0 was stopped for more than .* from its last checkpoint",
    ):
        studies.carry_out_study(spec, tmp_path, Signalling(signal.SIGSTOP), jobs=Jobs(2))
    assert not workers()


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    config = tmp_path / "study.toml"
    config.write_text(study_spec(rounds=5000, flatness=[]).to_toml())
    command_line = [sys.executable, "-m", "fedflat", "compare", str(config), "--out", str(tmp_path / "out"), "--jobs=2"]
    with subprocess.Popen(command_line, stdout=subprocess.DEVNULL) as parent:
        wait_until(lambda: len(list((tmp_path / "out").rglob("*.safetensors"))) >= 2, "two runs under way")
        theirs = children(parent.pid)
        parent.kill()
        parent.wait()
    assert len(theirs) == 2
    wait_until(lambda: all(map(has_ended, theirs)), "the end of the processes")


@pytest.mark.parametrize("wrong", [0, -1, "two", 1.5, True])
def test_jobs_that_are_no_number(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(InputError, match="jobs must be 'auto' or an integer of at least 1"):
        studies.carry_out_study(study_spec(), tmp_path, jobs=Jobs(wrong))
    assert not list(tmp_path.iterdir())
