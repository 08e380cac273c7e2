"""Runs and studies in folders: resumable, interruptible, never computed twice, one writer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

import fedflat as ff
from fedflat.core.errors import InputError, NonFiniteError
from fedflat.engine.ranks import Ranks
from fedflat.engine.simulation import Round
from fedflat.experiments import runner, studies
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.measuring import build_measures, measure_run
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.spec import RunSpec
from fedflat.experiments.studies import extend_study
from fedflat.files import locked
from fedflat.metrics.protocols import WINDOW
from support.effort import chosen, effort
from support.studies import run_spec, study_spec
from support.watching import Watched


def test_a_run_leaves_a_complete_folder(tmp_path: Path) -> None:
    run = runner.run(run_spec(), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {
        "config.toml",
        "env.json",
        "metrics.parquet",
        "partition.parquet",
        "model.safetensors",
        "summary.json",
        "SHA256SUMS",
    }
    kept = {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()}
    assert kept == {"round-000002.safetensors", "round-000004.safetensors", "round-000006.safetensors"}
    assert run.metrics.num_rows == 6
    assert run.counts.shape == (10, 10)
    assert run.counts.sum() == 1347
    assert (run.method, run.seed) == ("FedAvg", 0)
    assert run.flatness["lambda_max"].value > 0
    model = run_spec().build().model
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert not list((tmp_path / "run").rglob(".tmp-*"))


@pytest.mark.slow
def test_a_target_is_reached_when_the_accuracy_is_and_when_the_smoothed_one_is(tmp_path: Path) -> None:
    """The mean under a window lags behind a curve that rises; both are found by hand from the metrics."""
    run = runner.run(run_spec(rounds=30, targets=[0.5], flatness=[]), tmp_path)
    accuracy = run.metrics["test_accuracy"].to_numpy()
    weights = np.hanning(WINDOW + 2)[1:-1]
    around = np.pad(accuracy, WINDOW // 2, constant_values=np.nan)
    smoothed = []
    for at in range(len(accuracy)):
        there = ~np.isnan(around[at : at + WINDOW])
        smoothed.append(np.average(around[at : at + WINDOW][there], weights=weights[there]))
    [reached] = json.loads((tmp_path / "summary.json").read_text())["targets"]
    found = {name: reached[name]["rounds"] for name in ("plain", "smoothed")}
    assert found == {"plain": first_at_least(accuracy, 0.5), "smoothed": first_at_least(smoothed, 0.5)}
    assert found["plain"] != found["smoothed"]


def first_at_least(curve: Sequence[float], target: float) -> int:
    return 1 + next(t for t, value in enumerate(curve) if value >= target)


def test_a_finished_run_is_not_computed_again(tmp_path: Path) -> None:
    first, again = Watched(), Watched()
    for watched in (first, again):
        runner.run(run_spec(), tmp_path, watched)
    assert (len(first.rounds), first.started) == (6, [("FedAvg-seed0", 0)])
    assert (again.rounds, again.started, again.finished) == ([], [("FedAvg-seed0", 6)], ["FedAvg-seed0"])


@pytest.mark.slow
def test_a_study_can_be_extended(tmp_path: Path) -> None:
    studies.carry_out_study(study_spec(methods=["fedavg"], seeds=[0]), tmp_path)
    watched = Watched()
    runs = studies.carry_out_study(study_spec(), tmp_path, watched)
    assert len(runs) == 4
    assert len(watched.rounds) == 3 * 6
    spec, stored = studies.stored_study(tmp_path)
    assert spec == study_spec()
    assert [run.summary for run in stored] == [run.summary for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("store_megabytes", [2048, 0])
def test_ctrl_c_keeps_the_last_full_round_and_resume_ends_the_same(tmp_path: Path, store_megabytes: int) -> None:
    whole = runner.run(run_spec(method="fedsmoo"), tmp_path / "whole")
    spec = run_spec(method="fedsmoo", store_megabytes=store_megabytes)
    with pytest.raises(Interrupted, match="round 4 of 6 of FedSMOO-seed0 is saved") as stop:
        runner.run(spec, tmp_path / "stopped", Watched(signal_after=3))
    assert stop.value.exit_code == 130
    assert pq.read_table(tmp_path / "stopped" / "metrics.parquet").num_rows == 4
    watched = Watched()
    resumed = runner.run(spec, tmp_path / "stopped", watched)
    assert (watched.started, watched.rounds) == ([("FedSMOO-seed0", 4)], [4, 5])
    assert untimed(resumed.summary) == untimed(whole.summary)
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "stopped")]
    assert weights[0] == weights[1]


def untimed(summary: dict) -> dict:
    return {name: value for name, value in summary.items() if name != "seconds"}


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Python's own handler is there before and after; in the background of a shell, tests would ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        runner.run(run_spec(), tmp_path, Watched(signal_after=2, times=2))
    assert RunDirectory(tmp_path).checkpoint.name == "round-000002.safetensors"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_killed_at_any_moment_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """A process is killed several times, with records in memory and in a file; the files on disk are always whole."""
    spec = run_spec(method="scaffold", rounds=effort(30, 60), checkpoint_every=1, flatness=[])
    runner.run(spec, tmp_path / "whole")
    config = tmp_path / "spec.toml"
    config.write_text(spec.to_toml())
    command = [sys.executable, "-m", "fedflat", "run", str(config), "--out", str(tmp_path / "killed")]
    directory = RunDirectory(tmp_path / "killed")
    for goal, megabytes in chosen([(5, 2048), (20, 0)], [(5, 2048), (20, 0), (40, 2048)]):
        process = subprocess.Popen([*command, "--store_megabytes", str(megabytes)], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (
            directory.checkpoint is None or directory.checkpoint.stem < f"round-{goal:06d}"
        ):
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert not directory.is_finished
    runner.run(spec, tmp_path / "killed")
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "killed")]
    assert weights[0] == weights[1]
    assert not list((tmp_path / "killed").rglob(".tmp-*")), "incomplete files are removed"


@pytest.mark.slow
def test_records_in_a_file_stay_with_the_finished_run(tmp_path: Path) -> None:
    """The last checkpoint refers to them; measures of the next round read them and write nothing."""
    runs = {0: tmp_path / "file", 2048: tmp_path / "memory"}
    found = {}
    for megabytes, path in runs.items():
        runner.run(run_spec(method="scaffold", store_megabytes=megabytes), path)
        before = {file.name: file.read_bytes() for file in (path / "checkpoint").iterdir()}
        found[megabytes] = measure_run(RunDirectory(path), build_measures(["consistency"]), 100, None, lambda *_: None)
        assert {file.name: file.read_bytes() for file in (path / "checkpoint").iterdir()} == before
    assert "clients.slots" not in before
    assert {file.name for file in (runs[0] / "checkpoint").iterdir()} == {*before, "clients.slots"}
    assert found[0]["consistency"] == found[2048]["consistency"]


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    spec = run_spec(client={"lr": 1e3, "lr_decay": 1e10, "epochs": 1}, partition={"name": "iid"})
    with pytest.raises(NonFiniteError, match=r"client \d+ sent NaN or infinity in round \d+"):
        runner.run(spec.model_copy(update={"checkpoint_every": 1}), tmp_path)
    directory = RunDirectory(tmp_path)
    assert directory.checkpoint is not None
    assert not directory.is_finished
    with pytest.raises(InputError, match="holds no finished run; continue it with `fedflat resume`"):
        StoredRun.open(tmp_path)


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    runner.run(run_spec(), tmp_path)
    with pytest.raises(InputError, match=r"holds another run: client\.lr is 0\.1 there and 0\.2 here"):
        runner.run(run_spec(client={"lr": 0.2, "epochs": 1, "batch_size": 20}), tmp_path)
    with pytest.raises(InputError, match=r"holds another run: method\.name is FedAvg there and FedSAM here"):
        runner.run(run_spec(method="fedsam"), tmp_path)


def test_one_client_and_every_client_are_two_runs(tmp_path: Path) -> None:
    """1 is a number of clients, and 1.0 a share, though Python calls them equal."""
    runner.run(run_spec(rounds=1, participation=1), tmp_path)
    with pytest.raises(InputError, match=r"holds another run: participation is 1 there and 1\.0 here"):
        runner.run(run_spec(rounds=1, participation=1.0), tmp_path)


class SecondRank(Ranks):
    """The second of two ranks, of which the first has the settings `of_first`."""

    def __init__(self, of_first: RunSpec) -> None:
        super().__init__(2, 1, alone=False)
        object.__setattr__(self, "of_first", of_first)

    def first(self, value: Any) -> Any:
        return False if isinstance(value, bool) else json.loads(json.dumps(self.of_first.decisive()))

    @contextmanager
    def together(self) -> Iterator[None]:
        yield


def test_ranks_compare_their_settings_and_not_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSpec, "digest", lambda _: "0" * 16)
    with pytest.raises(InputError, match=r"^rank 1 has other settings than rank 0: client\.lr is 0\.1 there and 0\.2 "):
        runner.run(run_spec(client={"lr": 0.2, "epochs": 1, "batch_size": 20}), tmp_path, ranks=SecondRank(run_spec()))


def test_how_often_checkpoints_are_written_and_where_records_are_is_no_other_run(tmp_path: Path) -> None:
    runner.run(run_spec(), tmp_path)
    watched = Watched()
    runner.run(run_spec(checkpoint_every=3, store_megabytes=0), tmp_path, watched)
    assert watched.rounds == []


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    """More rounds alone extend a run; anything else needs another folder."""
    runner.run(run_spec(rounds=2), tmp_path)
    for changes, advice in (
        ({"rounds": 3}, f"rounds is 2 there and 3 here; `fedflat resume {tmp_path} --rounds 3` extends it"),
        ({"rounds": 1}, "rounds is 2 there and 1 here; choose another folder with --out, or remove this one"),
        ({"rounds": 3, "seed": 1}, "choose another folder with --out, or remove this one"),
    ):
        with pytest.raises(InputError) as refusal:
            runner.run(run_spec(**({"rounds": 2} | changes)), tmp_path)
        assert str(refusal.value).endswith(advice)


def begun(path: Path) -> None:
    (path / "runs" / "one").mkdir(parents=True)
    (path / "runs" / "one" / "config.toml").touch()


def test_a_study_may_grow_but_not_change(tmp_path: Path) -> None:
    studies.begin_study(study_spec(), tmp_path)
    begun(tmp_path)
    studies.begin_study(study_spec(methods=["fedavg"], seeds=[5], targets=[0.5]), tmp_path)
    extends = f"rounds is 6 there and 7 here; `fedflat resume {tmp_path} --rounds 7` extends it"
    with pytest.raises(InputError, match=f"holds another study: {extends}"):
        studies.begin_study(study_spec(rounds=7), tmp_path)
    with pytest.raises(InputError, match="choose another folder with --out, or remove this one"):
        studies.begin_study(study_spec(rounds=5), tmp_path)


def test_a_study_of_which_no_run_has_begun_claims_nothing(tmp_path: Path) -> None:
    """Its first start failed: the model does not take the data."""
    with pytest.raises(InputError, match="model 'lenet' takes images"):
        studies.carry_out_study(study_spec(model={"name": "lenet"}, rounds=1), tmp_path)
    assert studies.carry_out_study(study_spec(methods=["fedavg"], seeds=[0], rounds=1), tmp_path)


def test_studies_without_a_file_share_a_folder_only_if_they_extend_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = studies.default_folder(study_spec())
    assert re.fullmatch(r"runs/compare-[0-9a-f]{16}", str(folder))
    assert studies.default_folder(study_spec(methods=["feddyn"], seeds=[7], protocol="final")) == folder
    others = [studies.default_folder(study_spec(**{name: 7})) for name in ("rounds", "participation", "last")]
    assert len({folder, *others}) == 4


class Failing(ff.Callback):
    """Raises an error after the fourth round."""

    def round_ended(self, sim: ff.Simulation, round: Round) -> None:
        if round.t == 3:
            raise ZeroDivisionError("of the callback")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 25])
def test_an_error_of_a_callback_comes_after_the_round_is_saved(tmp_path: Path, every: int) -> None:
    spec = run_spec(checkpoint_every=every)
    with pytest.raises(ZeroDivisionError, match="of the callback"):
        runner.run(spec, tmp_path, callbacks=[Failing()])
    watched = Watched()
    runner.run(spec, tmp_path, watched)
    assert watched.rounds == [4, 5]


class Ended(ff.Callback):
    """Keeps what is on disk when the run ends."""

    def run_ended(self, run: ff.Run) -> None:
        self.rounds = run.summary["rounds"]
        self.files = {path.name for path in Path.cwd().iterdir()}


def test_the_end_is_told_when_the_results_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = Ended()
    runner.run(run_spec(), tmp_path, callbacks=[ended])
    assert ended.rounds == 6
    assert {"summary.json", "model.safetensors", "metrics.parquet"} <= ended.files


@pytest.mark.slow
def test_a_run_that_is_stopped_early_ends_alike_however_often_it_is_resumed(tmp_path: Path) -> None:
    callbacks = [ff.EarlyStopping("test_loss", patience=4)]
    spec = run_spec(rounds=40, client={"lr": 2.0, "epochs": 1, "batch_size": 20}, flatness=[], checkpoint_every=3)
    whole = runner.run(spec, tmp_path / "whole", callbacks=callbacks)
    rounds = int(whole.summary["rounds"])
    assert 3 < rounds < 40
    for after in (1, rounds - 2):
        with pytest.raises(Interrupted):
            runner.run(spec, tmp_path / "stopped", Watched(signal_after=after), callbacks=callbacks)
    resumed = runner.run(spec, tmp_path / "stopped", callbacks=callbacks)
    assert untimed(resumed.summary) == untimed(whole.summary)
    assert (
        RunDirectory(tmp_path / "stopped").checkpoint == tmp_path / f"stopped/checkpoint/round-{rounds:06d}.safetensors"
    )


def test_runs_and_studies_do_not_share_a_folder(tmp_path: Path) -> None:
    studies.begin_study(study_spec(), tmp_path / "study")
    with pytest.raises(InputError, match="holds a study; choose another folder for a run"):
        runner.run(run_spec(), tmp_path / "study")
    runner.run(run_spec(), tmp_path / "run")
    with pytest.raises(InputError, match="holds a run; choose another folder for a study"):
        studies.carry_out_study(study_spec(), tmp_path / "run")


@pytest.mark.slow
def test_a_diverging_method_does_not_stop_the_others(tmp_path: Path) -> None:
    wild = {"name": "fedsam", "server_lr": 1e38}
    watched = Watched()
    runs = studies.carry_out_study(study_spec(methods=["fedavg", wild, "scaffold"], seeds=[0]), tmp_path, watched)
    assert [run.method for run in runs] == ["FedAvg", "Scaffold"]
    assert watched.failed == ["FedSAM-seed0"]
    with pytest.raises(NonFiniteError):
        studies.carry_out_study(study_spec(methods=[wild], seeds=[0]), tmp_path)


@pytest.mark.parametrize("name", ["summary.json", "metrics.parquet", "partition.parquet"])
def test_a_damaged_result_is_named(tmp_path: Path, name: str) -> None:
    run = runner.run(run_spec(), tmp_path)
    (tmp_path / name).write_bytes(b"PAR1 nonsense")
    reader = {"summary.json": "summary", "metrics.parquet": "metrics", "partition.parquet": "counts"}[name]
    with pytest.raises(InputError, match=rf"{name} is missing or damaged: its SHA-256"):
        getattr(StoredRun(run.directory), reader)


def test_a_stored_run_reads_its_configuration_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report asks every run for its method and seed some twenty times."""
    spec, loads = run_spec(), list[Path]()
    stored = StoredRun(runner.run(spec, tmp_path).directory)
    monkeypatch.setattr(RunSpec, "load", lambda path: loads.append(path) or spec)
    assert {(stored.method, stored.seed, stored.summary["rounds"]) for _ in range(3)} == {
        (spec.label.partition("-")[0], spec.seed, spec.rounds)
    }
    assert loads == [tmp_path / "config.toml"]


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).writing(), pytest.raises(InputError, match="is being written by process"):
        runner.run(run_spec(), tmp_path)
    runner.run(run_spec(), tmp_path)


def test_a_study_that_another_process_begins_is_refused_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "PATIENCE", 0.1)
    studies.begin_study(study_spec(), tmp_path)
    before = (tmp_path / "study.toml").read_text()
    with locked(tmp_path / ".lock", ""):
        with pytest.raises(InputError, match="is being written by another study"):
            studies.carry_out_study(study_spec(seeds=[7]), tmp_path)
        with pytest.raises(InputError, match="is being written by another study"):
            extend_study(tmp_path, 9)
    assert (tmp_path / "study.toml").read_text() == before


def test_a_study_that_is_carried_out_is_not_extended(tmp_path: Path) -> None:
    spec = study_spec(flatness=[])
    studies.carry_out_study(spec, tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    held = studies.runs_of(spec, tmp_path)[-1][1]
    with held.writing(), pytest.raises(InputError, match=rf"{held.path.name} is being written by process"):
        extend_study(tmp_path, 9)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"--out .*file/run cannot be written: Not a directory"):
        runner.run(run_spec(), tmp_path / "file" / "run")
    with pytest.raises(InputError, match=r"file/study cannot be made: Not a directory"):
        studies.carry_out_study(study_spec(), tmp_path / "file" / "study")


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no finished run"):
        StoredRun.open(tmp_path)
    studies.begin_study(study_spec(), tmp_path)
    with pytest.raises(InputError, match="holds no finished run; continue the study with `fedflat resume"):
        studies.stored_study(tmp_path)


@pytest.mark.slow
def test_ctrl_c_while_flatness_is_measured_stops_at_once_and_trains_nothing_twice(tmp_path: Path) -> None:
    spec = run_spec(flatness=["sharpness", "eigenvalues"])
    with pytest.raises(Interrupted, match=r"all rounds of .* are saved, Sharpness was being measured"):
        runner.run(spec, tmp_path / "run", first := Watched(signal_in="Sharpness"))
    assert first.measured == ["Sharpness"]
    assert not (tmp_path / "run" / "summary.json").exists()
    run = runner.run(spec, tmp_path / "run", again := Watched())
    assert again.rounds == []
    assert set(again.measured) == {"Sharpness", "Eigenvalues"}
    assert run.flatness["sharpness"].value == runner.run(spec, tmp_path / "other").flatness["sharpness"].value
