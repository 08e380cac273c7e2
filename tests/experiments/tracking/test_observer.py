"""Runs in other tools: every metric of every round at its step, once, whatever stopped the run in between."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedflat.core.errors import ChangedWarning, InputError
from fedflat.experiments import runner, studies, tracking
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.runner import RunObserver, together
from fedflat.experiments.studies import extend_run
from fedflat.experiments.tracking.trackers import CsvTracker, TrackedRun
from support.studies import run_spec, study_spec
from support.tracked import READERS, Tracked
from support.watching import Watched

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default:::(wandb|mlflow|tensorboard|sqlalchemy|alembic)")]
SETTINGS = {"eval_every": 4, "flatness": ["gradient_norm"]}


@pytest.fixture(params=READERS)
def tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tool that is installed; nobody outside is spoken to."""
    package = tracking.TRACKERS[request.param].package
    if package:
        pytest.importorskip(package)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return request.param


def tracked_run(tool: str, folder: Path, also: RunObserver | None = None, **changes) -> StoredRun:
    with tracking.TrackingObserver([tool], folder, lambda _: RunDirectory(folder)) as tracked:
        return runner.run(run_spec(**(SETTINGS | changes)), folder, together(tracked, also or RunObserver()))


def assert_tracked(run: StoredRun, found: Tracked) -> None:
    """Every metric of every round, once and in order; the label, the settings and the summary."""
    rows = run.metrics.to_pylist()
    for name in set(run.metrics.column_names) - {"t"}:
        expected = [(row["t"], row[name]) for row in rows if row[name] is not None]
        if name != "seconds":  # rounds that were computed twice have taken another time
            assert found.metrics[name] == [(t, pytest.approx(value, rel=1e-6)) for t, value in expected], name
        assert [t for t, _ in found.metrics[name]] == [t for t, _ in expected]
    assert found.metrics.keys() == set(run.metrics.column_names) - {"t"}
    expected = {name: x for name, x in run.summary.items() if name != "seconds"} | {"gradient_norm": found_norm(run)}
    assert {n: x for n, x in found.summary.items() if n != "seconds"} == pytest.approx(expected, rel=1e-6)


def found_norm(run: StoredRun) -> float:
    return run.flatness["gradient_norm"].value


def test_every_metric_of_every_round_is_there_at_its_step(tool: str, tmp_path: Path) -> None:
    run = tracked_run(tool, tmp_path / "run")
    [found] = READERS[tool](tmp_path / "run")
    assert_tracked(run, found)
    if tool == "tensorboard":
        assert found.name.startswith("FedAvg-seed0-")
        toml = "\n".join(line.removeprefix("    ") for line in found.settings["toml"].splitlines())
        assert tomllib.loads(toml) == tomllib.loads(run_spec(**SETTINGS).to_toml())
    elif tool != "csv":  # its settings are in config.toml beside it
        assert found.name == "FedAvg-seed0"
        settings = {name: str(x) for name, x in found.settings.items()}
        assert settings["client.lr"] == "0.1"
        assert settings["method.name"] == "FedAvg"


class Killed(RunObserver):
    """Ends the run after a round that is tracked and not saved."""

    def round_ended(self, spec, result) -> None:
        if result.t == 4:
            raise KeyboardInterrupt


def test_steps_that_are_there_are_not_written_again(tool: str, tmp_path: Path) -> None:
    """The checkpoint is of four rounds, and five were tracked."""
    with pytest.raises(KeyboardInterrupt):
        tracked_run(tool, tmp_path, Killed())
    watched = Watched()
    run = tracked_run(tool, tmp_path, watched)
    assert watched.rounds == [4, 5]
    [found] = READERS[tool](tmp_path)
    assert_tracked(run, found)


def test_rounds_before_tracking_began_are_written_when_a_run_is_resumed(tool: str, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        runner.run(run_spec(**SETTINGS), tmp_path, Watched(signal_after=2))
    run = tracked_run(tool, tmp_path)
    [found] = READERS[tool](tmp_path)
    assert_tracked(run, found)


def test_a_finished_run_can_be_tracked_afterwards_and_extended(tool: str, tmp_path: Path) -> None:
    """Six rounds and then nine; the sixth was evaluated as the last one, which a tool still shows."""
    runner.run(run_spec(**SETTINGS), tmp_path)
    run = tracked_run(tool, tmp_path)
    [found] = READERS[tool](tmp_path)
    assert_tracked(run, found)
    extend_run(RunDirectory(tmp_path), 9)
    run = tracked_run(tool, tmp_path, rounds=9)
    [found] = READERS[tool](tmp_path)
    assert [t for t, _ in found.metrics["drift"]] == list(range(9))
    assert [t for t, _ in found.metrics["test_accuracy"]] == [3, 5, 7, 8]
    assert found.summary["drift"] == pytest.approx(run.summary["drift"], rel=1e-6)


@pytest.mark.usefixtures("forked_processes")
def test_a_study_has_a_run_for_each_of_its_own_also_side_by_side(tool: str, tmp_path: Path) -> None:
    spec = study_spec(seeds=[0], **SETTINGS)
    with tracking.TrackingObserver([tool], tmp_path, lambda one: studies.run_directory(one, tmp_path)) as tracked:
        runs = studies.carry_out_study(spec, tmp_path, tracked, jobs=Jobs(2))
    found = READERS[tool](tmp_path)
    assert len(found) == 2
    for run in runs:
        [own] = [one for one in found if one.name.startswith(run.method)]
        assert_tracked(run, own)


def test_a_kept_name_is_of_one_run_of_a_study_and_stays_when_the_run_gets_more_rounds(tmp_path: Path) -> None:
    """Runs that differ in their rounds alone had one name, and one folder of TensorBoard."""
    short, long = (run_spec(rounds=rounds) for rounds in (1, 2))
    for folder in (one := RunDirectory(tmp_path / "one"), other := RunDirectory(tmp_path / "other")):
        folder.path.mkdir()
    name = TrackedRun(short, one, tmp_path).kept_name("tensorboard")
    assert name != TrackedRun(long, other, tmp_path).kept_name("tensorboard")
    assert name == TrackedRun(long, one, tmp_path).kept_name("tensorboard")
    TrackedRun(short, one, tmp_path).keep("tensorboard", {"digest": "../../elsewhere"})
    assert name == TrackedRun(short, one, tmp_path).kept_name("tensorboard")


class Failing(CsvTracker):
    """A tool whose server goes away after three rounds."""

    def write(self, step: int, metrics) -> None:
        if step == 3:
            raise ConnectionError("the server is gone\nfor good")
        super().write(step, metrics)


def test_a_tool_that_fails_is_given_up_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "csv", Failing)
    with pytest.warns(ChangedWarning, match="--track csv is dropped for .*: the server is gone for good"):
        run = tracked_run("csv", tmp_path)
    assert run.metrics.num_rows == 6
    [found] = READERS["csv"](tmp_path)
    assert [t for t, _ in found.metrics["drift"]] == [0, 1, 2]


def test_a_tool_that_cannot_begin_is_one_line_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CsvTracker, "__init__", lambda self, run: 1 / 0)
    with pytest.raises(InputError, match="--track csv cannot begin: division by zero"):
        tracked_run("csv", tmp_path)
    assert RunDirectory(tmp_path).checkpoint is None


def test_a_last_row_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tracked_run("csv", tmp_path, Killed())
    path = tmp_path / "metrics.csv"
    path.write_text(path.read_text()[:-9])
    run = tracked_run("csv", tmp_path)
    assert_tracked(run, READERS["csv"](tmp_path)[0])


def test_a_file_of_somebody_else_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("name,value\nmine,1\n")
    with pytest.raises(InputError, match=r"metrics\.csv was not written by fedflat; move it away"):
        tracked_run("csv", tmp_path)
    assert path.read_text() == "name,value\nmine,1\n"


def test_unknown_and_missing_tools_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--track excel: known are csv, tensorboard, wandb, mlflow"):
        tracking.check_trackers(["csv", "excel"])
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "mlflow"):
        with pytest.raises(InputError) as error:
            tracking.check_trackers([name])
        assert str(error.value) == f"--track {name} needs the package {name}: pip install 'fedflat[{name}]'"
    assert tracking.check_trackers(["csv", "csv"]) == ("csv",)
