"""Sections inside sections: a method around another one in TOML, studies, grids and folders."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.object_references import allow_code
from fedflat.experiments.config_errors import validated
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.runner import run
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.studies import begin_study, carry_out_study, extend_run, extend_study, run_directory
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.methods import find
from fedflat.reports.page import Chapter, write_page
from support.studies import SMALL, run_spec, study_spec

SWA = {"name": "SWA", "base": {"name": "FedASAM", "rho": 0.7}, "begin": 0.5, "cycle": 2}
QUICK: dict[str, Any] = {"flatness": [], "data": {"name": "digits", "clients": 4}, "rounds": 6, "last": 1}


def test_a_method_inside_a_method_goes_to_toml_and_back() -> None:
    spec = run_spec(method=SWA)
    table = tomllib.loads(spec.to_toml())
    assert table["method"]["base"] == {"name": "FedASAM", "server_lr": 1.0, "rho": 0.7, "eta": 0.2}
    again = RunSpec(**table)
    assert (again, again.digest()) == (spec, spec.digest())
    assert again.method.object == find("SWA")(base=find("FedASAM")(rho=0.7), begin=0.5, cycle=2)


def test_a_name_is_enough_and_spelling_does_not_matter() -> None:
    short = run_spec(method={"name": "swa", "base": "fed-asam", "begin": 0.5, "cycle": 2})
    assert short.method.base.name == "FedASAM"
    assert validated(RunSpec, {"method": "swa"}).method.base.name == "FedAvg"
    assert short.digest() != run_spec(method=SWA).digest() != run_spec(method={**SWA, "base": "FedSAM"}).digest()


def test_no_value_where_the_default_is_one_is_kept() -> None:
    """A file cannot say nothing: what is left out is the default."""
    for method in ({**SWA, "lr_low": None}, {"name": "FedGMT", "beta": None}):
        spec = run_spec(method=method)
        assert "none" in tomllib.loads(spec.to_toml())["method"].values()
        again = RunSpec(**tomllib.loads(spec.to_toml()))
        assert (again, again.digest()) == (spec, spec.digest())
    with pytest.raises(InputError, match=r"method\.rho: must be a number in \[0, inf\), got 'none'"):
        validated(RunSpec, {"method": {"name": "FedSAM", "rho": "none"}})


def test_runs_are_named_by_both_and_have_folders_of_their_own(tmp_path: Path) -> None:
    methods = ["FedASAM", SWA, {**SWA, "base": "FedSAM"}, {**SWA, "base": {"name": "FedASAM", "rho": 0.1}}]
    runs = study_spec(methods=methods, seeds=[0]).runs()
    assert [run.label for run in runs] == [
        "FedASAM-seed0",
        "SWA-FedASAM-seed0",
        "SWA-FedSAM-seed0",
        "SWA-FedASAM-seed0",
    ]
    assert [run.title for run in runs[:3:2]] == ["FedASAM-seed0", "SWA-FedSAM-seed0"]
    assert runs[1].title == "SWA-FedASAM(rho=0.7)-seed0"
    assert len({run_directory(run, tmp_path).path for run in runs}) == 4


def test_a_grid_reaches_the_method_inside() -> None:
    grid = {"method.base.rho": [0.1, 0.2], "SWA-FedASAM.begin": [0.2, 0.4], "SWA.cycle": [1, 2]}
    runs = study_spec(methods=["FedASAM", {**SWA}, {**SWA, "base": "FedDyn"}], seeds=[0], grid=grid).runs()
    found = [(run.label, getattr(run.method.base, "rho", None), run.method.begin, run.method.cycle) for run in runs[1:]]
    assert runs[0].label == "FedASAM-seed0"
    assert found == [
        ("SWA-FedASAM-seed0", rho, begin, cycle) for rho in (0.1, 0.2) for begin in (0.2, 0.4) for cycle in (1, 2)
    ] + [("SWA-FedDyn-seed0", None, 0.5, cycle) for cycle in (1, 2)]
    with pytest.raises(InputError, match=r"no method of the study has a field 'base\.rh'"):
        validated(StudySpec, SMALL | {"methods": [SWA], "grid": {"method.base.rh": [1]}})
    with pytest.raises(InputError, match=r"grid: method\.base\.rho: must be a number in \[0, inf\), got -1"):
        validated(StudySpec, SMALL | {"methods": [SWA], "grid": {"method.base.rho": [-1]}})


def test_client_settings_are_of_one_base_or_of_all() -> None:
    both = [SWA, {**SWA, "base": "FedSAM"}, "FedASAM"]
    table = {"swa-fedasam": {"lr": 0.3}, "SWA": {"lr": 0.2}}
    assert [run.client.lr for run in study_spec(methods=both, client_of=table, seeds=[0]).runs()] == [0.3, 0.2, 0.1]
    with pytest.raises(InputError, match="unknown method 'fedasm'"):
        validated(StudySpec, SMALL | {"methods": both, "client_of": {"SWA-fedasm": {"lr": 0.1}}})


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ({**SWA, "base": "SWA"}, r"^method\.base: SWA is a wrapper itself, and cannot be inside another one$"),
        ({**SWA, "base": "local"}, r"^method: SWA\.base: Local trains each client alone, so the server has no models"),
        ({**SWA, "base": "fedasm"}, r"^method\.base: unknown name 'fedasm'; known are .*; did you mean FedASAM\?$"),
        ({**SWA, "base": {"name": "FedASAM", "rh": 1}}, r"^method\.base\.rh: unknown key; did you mean rho\?$"),
        ({**SWA, "base": {"name": "FedASAM", "begin": 1}}, r"^method\.base\.begin: unknown key; .* eta, name, rho, s"),
        ({**SWA, "base": {"name": "FedASAM", "rho": -1}}, r"^method\.base\.rho: must be a number in \[0, inf\)"),
        ({**SWA, "base": {"name": "FedASAM", "rho": True}}, r"^method\.base\.rho: must be a number in .*, got True$"),
        ({**SWA, "base": 3}, r"^method\.base: "),
        ({**SWA, "base": ["FedSAM"]}, r"^method\.base: "),
        ({**SWA, "begin": 1.5}, r"^method\.begin: must be a number in \[0, 1\], got"),
        ({**SWA, "cycle": 4}, r"^rounds = 6: SWA-FedASAM would average no model, as 3 rounds are left"),
        ({**SWA, "base": "mine.py:Mine"}, "mine.py"),
        ({"name": "FedSAM", "base": "FedAvg"}, r"^method\.base: unknown key"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(method: dict[str, Any], problem: str) -> None:
    if "mine.py" in str(method):  # code is not run, and not checked
        assert validated(RunSpec, SMALL | {"method": method}).label == "SWA-Mine-seed0"
        return
    with pytest.raises(InputError, match=problem) as caught:
        validated(RunSpec, SMALL | {"method": method})
    assert "\n" not in str(caught.value)


def test_a_weighting_that_the_base_refuses_is_refused() -> None:
    with pytest.raises(InputError, match=r"weights = 'samples' does not fit SWA-Scaffold"):
        validated(RunSpec, SMALL | {"method": {**SWA, "base": "Scaffold"}, "weights": "samples"})


def test_a_method_of_ones_own_inside_has_its_fields_and_its_code_in_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from fedflat.methods import FedSAM\n\n\nclass Mine(FedSAM):\n    '''client  server  '''\n")
    name = f"{file}:Mine"
    with allow_code():
        spec = run_spec(method={**SWA, "base": {"name": name, "rho": 0.4}})
        assert spec.label == "SWA-Mine-seed0"
        assert spec.method.object.base.rho == 0.4
        assert spec.code().keys() == {"mine.py:Mine"}
        moved = tmp_path / "elsewhere"
        moved.mkdir()
        (moved / "mine.py").write_text(file.read_text())
        other = run_spec(method={**SWA, "base": {"name": f"{moved / 'mine.py'}:Mine", "rho": 0.4}})
        assert other.digest() == spec.digest(), "the folder of a file is no setting"
        with pytest.raises(InputError, match=r"method\.base\.rh: unknown key; did you mean rho"):
            validated(RunSpec, SMALL | {"method": {**SWA, "base": {"name": name, "rh": 0.4}}})
    unloaded = RunSpec(**tomllib.loads(spec.to_toml()))
    assert (unloaded.label, unloaded.digest()) == (spec.label, spec.digest())


def test_a_search_takes_the_values_that_papers_tried_for_the_base_and_adds_no_rounds() -> None:
    data = {"name": "digits", "clients": 10, "validation": 0.2}
    table = SMALL | {"data": data, "methods": [SWA], "seeds": [0], "tune": {"configurations": 5, "rounds": [6]}}
    spec = validated(TuningSpec, table)
    tried = {one.values["method.base.rho"] for one in spec.configurations_of(spec.methods[0])[1:]}
    assert tried <= set(find("FedASAM").sources.grids["rho"])
    with pytest.raises(InputError, match=r"tune\.rounds = \[4, 6\]: SWA-FedASAM depends on the planned number"):
        validated(TuningSpec, table | {"tune": {"configurations": 5, "rounds": [4, 6]}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of SWA and its base."""
    path = tmp_path_factory.mktemp("study") / "study"
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("FEDFLAT_CACHE", str(tmp_path_factory.mktemp("cache")))
        carry_out_study(study_spec(methods=["FedASAM", SWA], seeds=[0], **QUICK), path)
    return path


@pytest.mark.slow
def test_what_a_finished_run_says_of_itself(finished: Path, tmp_path: Path) -> None:
    folder = next((finished / "runs").glob("SWA-FedASAM-seed0-*"))
    found = ff.load_run(folder)
    assert found.method == "SWA-FedASAM"
    assert found.settings["method"] == {
        "class": "SWA", "base": {"class": "FedASAM", "server_lr": 1.0, "rho": 0.7, "eta": 0.2}, "begin": 0.5,
        "cycle": 2, "lr_low": 1e-4, "sample": "cycle_end",
    }  # fmt: skip
    assert {"test_accuracy", "test_accuracy_iterate"} <= set(found.metrics.column_names)
    comparison = ff.compare([ff.load_run(path) for path in sorted((finished / "runs").iterdir())])
    assert [row.label for row in comparison.rows] == ["FedASAM", "SWA-FedASAM"]
    page = write_page([Chapter(comparison)], tmp_path / "page.html").read_text()
    assert "base.rho" in page
    assert "<dt>SWA</dt>" in page
    assert "<dt>FedASAM</dt>" in page


@pytest.mark.slow
def test_a_run_saved_from_python_has_the_name_too(tmp_path: Path) -> None:
    data = ff.data.load("digits", clients=4)
    method = ff.methods.SWA(base=ff.methods.FedSAM(), begin=0, cycle=1)
    ff.Simulation("mlp", data, method, rounds=2).run().save(tmp_path / "run")
    assert ff.load_run(tmp_path / "run").method == "SWA-FedSAM"


@pytest.mark.slow
def test_no_rounds_are_added(finished: Path) -> None:
    folder = next((finished / "runs").glob("SWA-FedASAM-seed0-*"))
    before = sorted(path.name for path in folder.iterdir())
    for extend in (lambda: extend_run(RunDirectory(folder), 9), lambda: extend_study(finished, 9)):
        with pytest.raises(InputError, match=r"^--rounds 9: SWA-FedASAM depends on the planned 6 rounds"):
            extend()
    assert sorted(path.name for path in folder.iterdir()) == before
    with pytest.raises(InputError, match="rounds is 6 there and 9 here; choose another folder"):
        begin_study(study_spec(methods=["FedASAM", SWA], seeds=[0], **QUICK | {"rounds": 9}), finished)


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_with_the_same_bits(finished: Path, tmp_path: Path) -> None:
    """From the checkpoint before the first average, and from the one after it."""
    spec = next(one for one in study_spec(methods=[SWA], seeds=[0], **QUICK).runs())
    for rounds in (2, 4):
        path = tmp_path / str(rounds)
        run(spec, path)
        for checkpoint in (path / "checkpoint").glob("round-*"):
            if checkpoint.name > f"round-{rounds:06d}.safetensors":
                checkpoint.unlink()
        (path / "summary.json").unlink()
        before = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").unlink()
        (path / "SHA256SUMS").unlink()
        run(spec, path)
        assert (path / "model.safetensors").read_bytes() == before


@pytest.mark.slow
def test_objects_are_settings_in_python(tmp_path: Path) -> None:
    runs = ff.study(
        methods=[ff.methods.SWA(base=ff.methods.FedASAM(rho=0.7), begin=0.5, cycle=2)], seeds=[0], out=tmp_path / "s",
        jobs=1, **SMALL | QUICK,
    )  # fmt: skip
    assert [one.method for one in runs] == ["SWA-FedASAM"]
    assert runs[0].spec.method == run_spec(method=SWA).method


def test_a_wrapper_of_ones_own_takes_any_base(tmp_path: Path) -> None:
    file = tmp_path / "around.py"
    file.write_text(
        "from fedflat.core.method import Method, hyper\nfrom fedflat.core.wrapper import Wrapper\n"
        "from fedflat.methods import FedAvg\n\n\nclass Around(Wrapper):\n    '''client  server  '''\n\n"
        "    base: Method = hyper(FedAvg(), 'inside')\n    share: float = hyper(0.5, 'of something', low=0)\n"
    )
    with allow_code():
        spec = run_spec(method={"name": f"{file}:Around", "base": {"name": "FedASAM", "rho": 0.7}, "share": 0.2})
        assert spec.label == "Around-FedASAM-seed0"
        assert spec.method.object.base == find("FedASAM")(rho=0.7)
        with pytest.raises(InputError, match=r"^method\.base: SWA is a wrapper itself"):
            validated(RunSpec, SMALL | {"method": {"name": f"{file}:Around", "base": "SWA"}})
    unloaded = RunSpec(**tomllib.loads(spec.to_toml()))
    assert (unloaded.label, unloaded.digest()) == (spec.label, spec.digest())
