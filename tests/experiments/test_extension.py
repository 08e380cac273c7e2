"""Runs and studies with more rounds than they were begun with end as if they had been begun with these."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner, studies
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.studies import extend_run, extend_study, with_rounds
from fedflat.experiments.verification import verify_run
from support.effort import chosen
from support.studies import run_spec, study_spec
from support.watching import Watched

# The last round of the shorter run is evaluated and probed only because it is the last one.
SETTINGS = {"method": "fedsmoo", "eval_every": 4, "probes": ["gradient_norm"], "probe_every": 4}


def results(folder: Path) -> tuple[bytes, list[dict], dict, list]:
    """The model, the metrics and the summary without times, and the findings of a finished run."""
    run = StoredRun.open(folder)
    metrics = [row | {"seconds": 0} for row in run.metrics.to_pylist()]
    summary = run.summary | {"seconds": 0}
    return (folder / "model.safetensors").read_bytes(), metrics, summary, run.directory.findings()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of nine rounds."""
    folder = tmp_path_factory.mktemp("expected")
    runner.run(run_spec(rounds=9, **SETTINGS), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("store_megabytes", [2048, 0])
def test_a_finished_run_ends_as_one_that_was_begun_with_more_rounds(
    expected: Path, tmp_path: Path, store_megabytes: int
) -> None:
    runner.run(run_spec(rounds=6, store_megabytes=store_megabytes, **SETTINGS), tmp_path)
    short = StoredRun.open(tmp_path)
    assert short.metrics["test_accuracy"][5].as_py() is not None
    longer, watched = extend_run(RunDirectory(tmp_path), 9), Watched()
    assert not RunDirectory(tmp_path).is_finished
    assert not RunDirectory(tmp_path).damaged_files()
    runner.run(longer, tmp_path, watched)
    assert watched.rounds == [6, 7, 8]
    assert results(tmp_path) == results(expected)
    assert not [verdict for verdict in verify_run(tmp_path) if verdict.problem]


@pytest.mark.slow
def test_a_stopped_run_does(expected: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        runner.run(run_spec(rounds=6, **SETTINGS), tmp_path, Watched(signal_after=2))
    runner.run(extend_run(RunDirectory(tmp_path), 9), tmp_path)
    assert results(tmp_path) == results(expected)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of six rounds, to be copied."""
    folder = tmp_path_factory.mktemp("short")
    runner.run(run_spec(rounds=6, **SETTINGS), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("remaining", chosen([0, 2, 3, 5, 7, 9], range(10)))
def test_killed_while_it_is_extended_it_is_a_run_of_one_or_the_other(
    expected: Path, short: Path, tmp_path: Path, remaining: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After file operations, in `make test-all` after each.

    It continues with what its configuration says, and can be extended again.
    """
    shutil.copytree(short, tmp_path, dirs_exist_ok=True)
    left = [remaining]

    def dying(operation):
        def call(*args, **kwargs):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return operation(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying(os.replace))
        patch.setattr(Path, "unlink", dying(Path.unlink))
        try:
            extend_run(RunDirectory(tmp_path), 9)
        except KeyboardInterrupt:
            assert left == [0]
    directory = RunDirectory(tmp_path)
    assert directory.spec().rounds in (6, 9)
    assert not (directory.is_finished and directory.spec().rounds == 9)
    runner.run(directory.spec(), tmp_path)
    if directory.spec().rounds == 6:
        runner.run(extend_run(directory, 9), tmp_path)
    assert results(tmp_path) == results(expected)


def refused(folder: Path, rounds: int, message: str) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=message):
        extend_run(RunDirectory(folder), rounds)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_cannot_be_extended_stays_as_it_is(tmp_path: Path) -> None:
    runner.run(run_spec(rounds=2, participation=[[0, 1], [2, 3]]), tmp_path)
    refused(tmp_path, 2, "--rounds 2: .* already has 2 rounds; give a larger number")
    refused(tmp_path, 1, "give a larger number")
    refused(tmp_path, 3, "participation lists 2 rounds, but rounds = 3")
    refused(tmp_path, 10**7, "rounds")
    for path in RunDirectory(tmp_path).checkpoints:
        path.unlink()
    refused(tmp_path, 3, "cannot be extended: it has no checkpoint")


def test_with_no_whole_checkpoint_nothing_is_removed(tmp_path: Path) -> None:
    runner.run(run_spec(rounds=2), tmp_path)
    for path in RunDirectory(tmp_path).checkpoints:
        path.write_bytes(path.read_bytes()[:-1])
    refused(tmp_path, 3, "all 1 checkpoints are damaged")


@pytest.mark.slow
def test_a_study_is_extended_with_all_its_runs(tmp_path: Path) -> None:
    """One of them has not begun; afterwards nothing is computed again."""
    short = study_spec(methods=["fedavg", "fedsam"], seeds=[0])
    studies.carry_out_study(study_spec(methods=["fedavg"], seeds=[0]), tmp_path / "study")
    studies.begin_study(short, tmp_path / "study")
    watched = Watched()
    longer = extend_study(tmp_path / "study", 8)
    assert longer == with_rounds(short, 8)
    runs = studies.carry_out_study(longer, tmp_path / "study", watched)
    assert watched.rounds == [6, 7, *range(8)]
    expected = studies.carry_out_study(longer, tmp_path / "expected")
    assert [results(run.directory.path) for run in runs] == [results(run.directory.path) for run in expected]
    again = Watched()
    studies.carry_out_study(longer, tmp_path / "study", again)
    assert again.rounds == []


@pytest.mark.slow
def test_a_study_that_is_killed_while_it_is_extended_is_extended_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = study_spec(seeds=[0], flatness=[])
    studies.carry_out_study(spec, tmp_path)
    real, calls = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        extend_study(tmp_path, 8)
    watched = Watched()
    studies.carry_out_study(extend_study(tmp_path, 8), tmp_path, watched)
    assert watched.rounds == [6, 7, 6, 7]


def test_a_run_that_stopped_early_is_finished_and_can_be_extended(tmp_path: Path) -> None:
    from fedflat import EarlyStopping

    callbacks = [EarlyStopping("test_accuracy", patience=1, min_delta=0.9)]
    runner.run(run_spec(rounds=20, flatness=[]), tmp_path, callbacks=callbacks)
    assert StoredRun.open(tmp_path).summary["rounds"] == 2
    assert json.loads((tmp_path / "summary.json").read_text())["summary"]["rounds"] == 2
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    watched = Watched()
    with pytest.warns(match="model.safetensors is damaged, and is restored"):
        runner.run(run_spec(rounds=20, flatness=[]), tmp_path, watched)
    assert watched.rounds == [], "it stays as long as it was, without the callback"
    runner.run(extend_run(RunDirectory(tmp_path), 21), tmp_path, watched)
    assert watched.rounds == list(range(2, 21))
