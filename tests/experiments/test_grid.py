"""Grids: which runs they make, what each is called, and what is refused."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from shutil import rmtree

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments.config_errors import validated
from fedflat.experiments.run_directory import difference
from fedflat.experiments.settings_tables import variants
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.studies import (
    begin_study,
    carry_out_study,
    extend_study,
    run_directory,
    stored_study,
    write_study,
)
from support.effort import effort
from support.studies import SMALL, study_spec


def test_every_combination_is_run_with_every_seed() -> None:
    grid = {"method.rho": [0.05, 0.2], "client.lr": [0.1, 0.5], "partition.alpha": [0.1, 1.0]}
    runs = study_spec(methods=["fedsam"], seeds=[0, 1, 2], grid=grid).runs()
    found = [(run.seed, run.method.rho, run.client.lr, run.partition.alpha) for run in runs]
    assert found == list(product([0, 1, 2], [0.05, 0.2], [0.1, 0.5], [0.1, 1.0]))
    assert len({run_directory(run, Path()).path for run in runs}) == 24


def test_a_field_goes_for_the_methods_that_have_it() -> None:
    runs = study_spec(methods=["fedavg", "fedsam"], seeds=[0], grid={"method.rho": [0.05, 0.2]}).runs()
    assert [run.title for run in runs] == ["FedAvg-seed0", "FedSAM(rho=0.05)-seed0", "FedSAM(rho=0.2)-seed0"]


def test_a_field_of_one_method_goes_for_that_one() -> None:
    grid = {"FedSAM.rho": [0.05, 0.2]}
    runs = study_spec(methods=["fedsam", "fedasam"], seeds=[0], grid=grid).runs()
    assert [run.title for run in runs] == ["FedSAM(rho=0.05)-seed0", "FedSAM(rho=0.2)-seed0", "FedASAM-seed0"]


def test_without_a_grid_folders_are_named_as_ever() -> None:
    """Two variants of one method: their titles tell them apart, their folders have the digest of their settings."""
    methods = [{"name": "fedsam", "rho": rho} for rho in (0.05, 0.2)]
    runs = study_spec(methods=methods, seeds=[1]).runs()
    assert [run.title for run in runs] == ["FedSAM(rho=0.05)-seed1", "FedSAM(rho=0.2)-seed1"]
    assert [run_directory(run, Path()).path.name for run in runs] == [f"FedSAM-seed1-{run.digest()}" for run in runs]


def test_a_methods_own_client_settings_hold_where_the_grid_says_nothing() -> None:
    study = study_spec(seeds=[0], client_of={"FedSAM": {"lr": 0.7, "momentum": 0.9}}, grid={"client.lr": [0.1, 0.2]})
    assert [(run.method.name, run.client.lr, run.client.momentum) for run in study.runs()] == [
        ("FedAvg", 0.1, 0.0), ("FedAvg", 0.2, 0.0), ("FedSAM", 0.1, 0.9), ("FedSAM", 0.2, 0.9),
    ]  # fmt: skip


def test_equal_runs_are_one() -> None:
    methods = [{"name": "fedsam", "rho": rho} for rho in (0.05, 0.2)]
    assert len(study_spec(methods=methods, seeds=[0], grid={"method.rho": [0.05, 0.2]}).runs()) == 2


def test_settings_that_share_the_first_digits_of_a_digest_are_different_runs() -> None:
    """The first two of these step sizes were one run, as the first six digits of their digests are the same."""
    table = {"data": {"name": "digits", "clients": 10}, "rounds": 2, "methods": ["fedavg"], "seeds": [0]}
    runs = StudySpec(**table, grid={"client.lr": [0.00472, 0.05195, 0.5]}).runs()
    assert [run.client.lr for run in runs] == [0.00472, 0.05195, 0.5]
    assert len({run.digest()[:6] for run in runs}) == 2
    assert len({run_directory(run, Path()).path for run in runs}) == 3


def test_ten_thousand_settings_are_ten_thousand_runs() -> None:
    values = effort(100, 10_000)
    grid = {"client.lr": [0.001 + i * 1e-6 for i in range(values)]}
    runs = study_spec(methods=["fedavg"], seeds=list(range(10_000 // values)), grid=grid).runs()
    assert len({(run.seed, run.client.lr) for run in runs}) == len(runs) == 10_000
    some = runs[:: effort(13, 1)]
    assert len({run_directory(run, Path()).path for run in some}) == len(some)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("client.lr", [0.1, 0.1000000001]), ("client.momentum", [0.0, 5e-324]), ("participation", [1, 1.0]),
        ("model.options.hidden", [1, [1]]), ("model.options.x", [1, 1.0, True, "1"]), ("method.base.rho", [0.1, 0.2]),
        ("partition", ["iid", {"name": "dirichlet", "alpha": 0.5}, {"name": "dirichlet", "alpha": 0.5000000000000001}]),
        ("seeds", [2**62, 2**62 + 1]), ("model.options.x", [float("inf"), float("nan")]),
    ],
)  # fmt: skip
def test_values_that_are_nearly_the_same_are_different_runs(key: str, values: list) -> None:
    around = {"name": "swa", "base": {"name": "fedsam"}}
    table = {**SMALL, "methods": [around], "rounds": 100, "grid": {key: values}}
    runs = validated(StudySpec, table | ({} if key == "seeds" else {"seeds": [0]})).runs()
    assert len({run_directory(run, Path()).path for run in runs}) == len(values)
    for i, one in enumerate(runs):
        for j, other in enumerate(runs):
            assert bool(difference(one.decisive(), other.decisive())) == (i != j)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("client.lr", [1, 1.0]), ("client.lr", ["0.1", 0.1]), ("partition", ["iid", {"name": "iid"}]),
        ("partition", ["IID", "iid"]), ("participation", ["0.5", 0.5]), ("workers", [1, 2]),
        ("targets", [[0.5], [0.6]]), ("client.batch_size", ["none", None]),
    ],
)  # fmt: skip
def test_two_values_that_are_one_run_are_refused(key: str, values: list) -> None:
    with pytest.raises(InputError, match=r'^grid: {"\S+": .*} and {"\S+": .*} are the same run of FedAvg; leave one'):
        validated(StudySpec, {**SMALL, "methods": ["fedavg"], "grid": {key: values}})


def test_two_runs_with_one_folder_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = study_spec(seeds=[0], grid={"client.lr": [0.1, 0.2]})
    monkeypatch.setattr(RunSpec, "digest", lambda _: "0" * 16)
    assert len(spec.runs()) == 4, "runs are found by their settings"
    with pytest.raises(InputError, match=r"^two runs of FedAvg-seed0 have one folder, .*0000: client.lr is 0.1 there"):
        carry_out_study(spec, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_folder_of_a_study_that_holds_another_run_is_refused(tmp_path: Path) -> None:
    spec = study_spec(methods=["fedavg"], seeds=[0], rounds=1, grid={"client.lr": [0.1, 0.2]})
    carry_out_study(spec.model_copy(update={"grid": {"client.lr": [0.1]}}), tmp_path)
    right, wrong = (run_directory(run, tmp_path) for run in spec.runs())
    right.path.rename(wrong.path)
    write_study(spec, tmp_path)
    for attempt in (stored_study, study_again := partial(carry_out_study, spec), lambda path: extend_study(path, 2)):
        with pytest.raises(InputError, match=r" holds another run: client\.lr is 0\.1 there and 0\.2 here"):
            attempt(tmp_path)
        if attempt is study_again:
            rmtree(right.path)  # what it trained before it came to the other one
    assert wrong.spec().rounds == 1, "the other run was not changed"


def test_seeds_may_be_in_the_grid() -> None:
    table = {**SMALL, "methods": ["fedavg"], "grid": {"seeds": [3, 4], "rounds": [1, 2]}}
    assert [(run.seed, run.rounds) for run in StudySpec(**table).runs()] == [(3, 1), (3, 2), (4, 1), (4, 2)]


def test_a_file_may_have_the_keys_as_tables(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("seeds = [0]\n[grid]\nclient.lr = [0.1, 0.2]\n'FedSAM.rho' = [0.3]\n")
    study = StudySpec.load(tmp_path / "a.toml")
    assert study.grid == {"client.lr": [0.1, 0.2], "FedSAM.rho": [0.3]}
    (tmp_path / "b.toml").write_text(study.to_toml())
    assert StudySpec.load(tmp_path / "b.toml") == study


def test_a_study_can_be_extended_by_its_grid(tmp_path: Path) -> None:
    begin_study(study_spec(grid={"client.lr": [0.1]}), tmp_path)
    begin_study(study_spec(grid={"client.lr": [0.1, 0.2], "method.rho": [0.1]}), tmp_path)
    config = run_directory(study_spec().runs()[0], tmp_path).path / "config.toml"
    config.parent.mkdir(parents=True)
    config.touch()  # a run has begun
    with pytest.raises(InputError, match="rounds is 6 there and 7 here"):
        begin_study(study_spec(rounds=7), tmp_path)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"rounds": 5}, "grid: rounds must be a list of values, got 5"),
        ({"rounds": []}, "grid: rounds must be a list of values"),
        ({"seed": [0, 1]}, "grid: seed: the seeds of a study are called seeds"),
        ({"client": {"lr": [0.1, 0.1]}}, "grid: client.lr has a value twice"),
        ({"client.lr": [0.1, -1]}, "grid: client.lr: must be a number in (0, inf), got -1"),
        ({"client.lrr": [0.1]}, "grid: client.lrr: unknown key; did you mean lr?"),
        ({"method.roh": [0.1]}, "grid.method.roh: no method of the study has a field 'roh'"),
        ({"FedDyn.alpha": [0.1]}, "grid.FedDyn.alpha: no method FedDyn has a field 'alpha'"),
        ({"FedSAM.alpha": [0.1]}, "grid.FedSAM.alpha: no method FedSAM has a field 'alpha'"),
        ({"sed": [0.1]}, "grid: sed: unknown key; did you mean seed?"),
        ({"data.clients.x": [1]}, "grid: data.clients: must be a whole number in [1, 2.14748e+09], got {'x': 1}"),
        ({"seeds": [1]}, "seeds are given twice"),
        ({"client.lr": [0.1 + i / 1e6 for i in range(5001)]}, "methods, seeds and grid make 20,004 runs; 10,000 are"),
    ],
)
def test_what_is_no_grid_is_named(grid: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        validated(StudySpec, SMALL | {"seeds": [0, 1], "grid": grid})
    assert message in str(caught.value)


def test_variants_name_what_differs_and_no_more() -> None:
    assert variants([{"a": {"lr": 1, "x": 2}}, {"a": {"lr": 3, "x": 2}}]) == ["lr=1", "lr=3"]
    assert variants([{"a": {"lr": 1}, "b": {"lr": 1}}, {"a": {"lr": 2}, "b": {"lr": 3}}]) == [
        "a.lr=1, b.lr=1",
        "a.lr=2, b.lr=3",
    ]
    assert variants([{"a": 1}, {"a": 1}]) == ["", ""]
    assert variants([{"a": 1}, {"b": 1}]) == ["a=1", "b=1"]
