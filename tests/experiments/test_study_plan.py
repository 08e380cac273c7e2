"""What a study is foretold to cost: every run of it, with one trial for each kind, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import study_plan as plans
from fedflat.experiments.budget import Speed, budget_of_runs
from fedflat.experiments.spec import RunSpec
from fedflat.experiments.studies import begin_study, carry_out_study, run_directory
from fedflat.experiments.study_plan import MOST_TRIALS, TrialCost, seconds_of, study_plan, trial_cost
from fedflat.reports.plans import plan_lines
from support.studies import run_spec, study_spec


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that are tried: a gradient takes a second, an evaluation a trillionth."""
    found: list[str] = []

    def constant(run: RunSpec, sim: object) -> TrialCost:
        found.append(run.title)
        return TrialCost(run.title, Speed(1.0, 1e-12), 100, 10**6)

    monkeypatch.setattr(plans, "trial_cost", constant)
    monkeypatch.setattr(plans, "SHORT", 0.0)
    return found


def test_its_cost_is_that_of_all_runs_with_a_trial_for_each_method(tried: list[str], tmp_path: Path) -> None:
    spec = study_spec(seeds=[0, 1], grid={"client.lr": [0.1, 0.2], "client.epochs": [1, 3], "method.rho": [0.1, 0.2]})
    plan = study_plan(spec, tmp_path / "study")
    assert [run.spec for run in plan] == spec.runs()
    assert sum(run.budget.gradients for run in plan) == budget_of_runs(spec.runs()).gradients
    assert seconds_of(plan) == pytest.approx(budget_of_runs(spec.runs()).gradients)
    assert tried == ["FedAvg(lr=0.1, epochs=1)-seed0", "FedSAM(rho=0.1, lr=0.1, epochs=1)-seed0"]
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("jobs", [1, 2, 3, 8])
def test_jobs_divide_the_time_of_equal_runs(tried: list[str], tmp_path: Path, jobs: int) -> None:
    plan = study_plan(study_spec(methods=["fedavg"], seeds=list(range(8))), tmp_path)
    assert seconds_of(plan, jobs) == pytest.approx(ceil(8 / jobs) * plan[0].seconds)
    assert f"memory  about {jobs} MB" in plan_lines(plan, tmp_path, jobs)


def test_there_are_few_trials_of_many_kinds(tried: list[str], tmp_path: Path) -> None:
    sizes = list(range(1, MOST_TRIALS + 20))
    plan = study_plan(study_spec(seeds=[0], grid={"client.batch_size": sizes}), tmp_path)
    assert len(tried) == MOST_TRIALS
    assert len(plan) == 2 * len(sizes)
    assert {run.trial.title.partition("(")[0] for run in plan[: len(sizes)]} == {"FedAvg"}


def test_what_is_finished_costs_no_time_and_its_folder_has_no_more_than_foretold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Gradients take no time: on a busy machine a trial's may take longer than a whole run does afterwards."""
    monkeypatch.setattr(plans, "trial_cost", lambda *given: replace(trial_cost(*given), speed=Speed(0.0, 0.0)))
    methods: list[Any] = ["fedavg", "scaffold"]
    some = study_spec(methods=methods, seeds=[0], rounds=7)
    carry_out_study(some, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan = study_plan(study_spec(methods=methods, seeds=[0, 1], rounds=7), tmp_path)
    assert [run.spec.label for run in plan if run.finished] == ["FedAvg-seed0", "Scaffold-seed0"]
    left = [run.seconds for run in plan if run.spec.seed == 1]
    assert seconds_of(plan) == pytest.approx(sum(left))
    assert min(left) > 0
    assert min(run.trial.fixed for run in plan) > 0, "so short a run is carried out: it has a start and files"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert plan_lines(plan, tmp_path, 1)[0] == "runs    4: 2 finished, 0 begun; seeds 0, 1"
    for run in plan[:2]:
        size = sum(path.stat().st_size for path in run.directory.path.rglob("*") if path.is_file())
        assert size <= run.disk_bytes < 2.5 * size


def test_a_folder_that_the_study_would_be_refused_for_is_refused(tried: list[str], tmp_path: Path) -> None:
    spec = study_spec(seeds=[0])
    begin_study(spec, tmp_path)
    folder = run_directory(spec.runs()[0], tmp_path).path
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(run_spec(client={"lr": 0.7}).to_toml())
    with pytest.raises(InputError, match="holds another study: rounds is 6 there and 7 here"):
        study_plan(study_spec(seeds=[0], rounds=7), tmp_path)
    (folder / "summary.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds another run: client\.lr is 0\.7 there and 0\.1 here"):
        study_plan(spec, tmp_path)
    assert tried == []
