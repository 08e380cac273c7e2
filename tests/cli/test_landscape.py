"""`fedflat landscape` as a user meets it, and the models it finds in the folders of runs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedflat.experiments import landscapes, runner, studies
from fedflat.experiments.landscapes import (
    SurfaceSettings,
    feature_task,
    plane_task,
    surface_tasks,
)
from fedflat.experiments.measuring import LoadedRun, load_simulation, shown_runs
from fedflat.files import locked
from fedflat.metrics.features import FeatureMap
from fedflat.metrics.flatness.surface import Surface
from support.studies import run_spec, study_spec

SMALL = "--points 5 --max-samples 5000"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three methods and two seeds, and a run on another model."""
    folder = tmp_path_factory.mktemp("finished")
    plain = {"rounds": 2, "flatness": []}
    studies.carry_out_study(study_spec(methods=["fedavg", "fedsam", "scaffold"], **plain), folder / "study")
    runner.run(run_spec(model={"name": "mlp", "options": {"hidden": [5]}}, **plain), folder / "other")
    return folder


@pytest.fixture
def study(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that the test may change, in the folder that it works in."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished / "study", tmp_path / "study")).relative_to(tmp_path)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the grids that were measured."""
    sizes: list[int] = []
    measure = landscapes.losses_on

    def counted(loss, plane, x, y, progress):
        sizes.append(len(x) * len(y))
        return measure(loss, plane, x, y, progress)

    monkeypatch.setattr(landscapes, "losses_on", counted)
    return sizes


def index(folder: str) -> list[dict]:
    return json.loads(Path(folder, "landscape.json").read_text())


def runs_of(study: Path, seed: int = 0) -> list[Path]:
    return sorted((study / "runs").glob(f"*-seed{seed}-*"))


def flat(run: Path) -> torch.Tensor:
    """The parameters in alphabetical order, which distances do not depend on."""
    return torch.cat([p.flatten() for _, p in sorted(load_file(run / "model.safetensors").items())]).double()


@pytest.mark.slow
def test_a_study_shows_every_methods_first_seed(fedflat, study: Path, measured: list[int]) -> None:
    code, out, err = fedflat(f"landscape {study} {SMALL}")
    assert (code, err) == (0, "")
    assert "page: study/landscape/landscape.html" in out
    assert "FedSAM, global model: loss " in out
    files = {path.name for path in (study / "landscape").iterdir()}
    assert files == {"landscape.html", "landscape.json", "contours.svg", "profiles.svg", "surfaces"}
    assert measured == [25, 25, 25]
    for content, run in zip(index("study/landscape"), runs_of(study), strict=True):
        surface = Surface.load(study / "landscape" / content["file"])
        assert run.name.startswith(surface.label)
        # The run's own evaluation of its training loss, of all samples that clients hold.
        trained = json.loads((run / "summary.json").read_text())["summary"]["train_loss"]
        assert surface.loss[2, 2] == pytest.approx(trained, rel=1e-6)
        assert surface.marks[0].loss == surface.loss[2, 2]


@pytest.mark.slow
def test_a_second_landscape_in_the_folder_is_refused_at_once(fedflat, study: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "surfaces").mkdir(parents=True)
    with locked(tmp_path / "out" / "surfaces" / ".lock", ""):
        code, _, err = fedflat(f"landscape {study} --points 3 --out {tmp_path / 'out'}")
    assert (code, err) == (2, f"fedflat: --out {tmp_path / 'out'} is being written by another process\n")


def test_what_is_finished_is_not_computed_again(fedflat, study: Path, measured: list[int]) -> None:
    fedflat(f"landscape {study} {SMALL}")
    before = Path("study/landscape/landscape.html").read_bytes()
    measured.clear()
    code, out, _ = fedflat(f"landscape {study} {SMALL}")
    assert code == 0
    assert out.count("kept from before") == 3
    assert measured == []
    assert Path("study/landscape/landscape.html").read_bytes() == before
    for file in Path("study/landscape/surfaces").glob("FedSAM*"):
        file.write_bytes(b"damaged")
    assert fedflat(f"landscape {study} {SMALL}")[0] == 0
    assert len(measured) == 1


@pytest.mark.slow
def test_every_setting_and_every_model_has_a_file_of_its_own(study: Path) -> None:
    runs, default = shown_runs([study, *runs_of(study, seed=1)]), SurfaceSettings(local=1)
    changes = [{"points": 3}, {"reach": 0.5}, {"axes": 1}, {"max_samples": 50}, {"seed": 1}]
    settings = [default, *(replace(default, **change) for change in changes)]
    files = [job.path for one in settings for job in surface_tasks(LoadedRun(), runs, one, Path())]
    assert len(set(files)) == len(files) == 6 * 6 * 2
    shared = [job.path for job in surface_tasks(LoadedRun(), runs, SurfaceSettings(), Path())]
    assert set(shared) < set(files), "surfaces of global models do not depend on how many local ones are shown"
    planes = [plane_task(LoadedRun(), runs, one, Path()).path for one in settings]
    assert len(set(planes)) == 4, "a plane depends neither on the seed nor on the range"
    assert (
        feature_task(LoadedRun(), runs[0], default.seed, Path()).path
        != feature_task(LoadedRun(), runs[0], settings[-1].seed, Path()).path
    )


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(fedflat, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, done = landscapes.losses_on, []

    def stopped(*arguments):
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return measure(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(landscapes, "losses_on", stopped)
        code, _, err = fedflat(f"landscape {study} {SMALL}")
    assert code == 130
    assert err == "fedflat: stopped; 1 of 3 pictures are kept, and the same command computes the others\n"
    assert not Path("study/landscape/landscape.html").exists()
    code, out, _ = fedflat(f"landscape {study} {SMALL}")
    assert code == 0
    assert out.count("kept from before") == 1


def test_local_models_are_those_whose_mean_the_next_round_makes(study: Path) -> None:
    """FedAvg with equal weights: the server's next model is the mean of its clients'."""
    (run,) = shown_runs([path for path in runs_of(study) if path.name.startswith("FedAvg")])
    cohort = run.next_cohort()
    bench = LoadedRun()
    local = bench.local(run, cohort)
    assert torch.equal(bench.model(run), bench.simulation(run).w), "the checkpoint's model is the one in the file"
    sim = load_simulation(run.stored.directory)
    assert list(local) == sim.cohort(sim.t).tolist()
    sim.round()
    torch.testing.assert_close(torch.stack(list(local.values())).mean(0), sim.w)
    assert len({tuple(w.tolist()) for w in local.values()}) == len(cohort)


@pytest.mark.slow
def test_local_models_are_shown_on_their_own_samples(fedflat, study: Path) -> None:
    one, other, _ = runs_of(study)
    assert fedflat(f"landscape {one} {other} {SMALL} --local 2 --out out")[0] == 0
    content = index("out")
    assert [row["part"] for row in content] == [content[k]["part"] for k in (0, 1, 2)] * 2, "the same clients"
    run = shown_runs([one])[0]
    client = run.local_clients(2)[1]
    sim = load_simulation(run.stored.directory)
    x, y = sim.data.client(client)
    w = LoadedRun().local(run, run.local_clients(2))[client]
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(sim.objective.logits(w, x), y)
    assert content[2]["marks"][0]["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert f"{len(y)} training samples of this client" in content[2]["protocol"]


@pytest.mark.slow
def test_a_plane_has_the_models_at_their_distances(fedflat, study: Path) -> None:
    assert fedflat(f"landscape {study} {SMALL} --plane --local 1 --out out")[0] == 0
    (content,) = index("out")
    marks, methods = content["marks"], ["FedAvg", "FedSAM", "Scaffold"]
    client = shown_runs([study])[0].local_clients(1)[0]
    assert [mark["label"] for mark in marks] == methods + [f"{method}, client {client}" for method in methods]
    models = [flat(run) for run in runs_of(study)]
    spots = [np.array([mark["x"], mark["y"]]) for mark in marks[:3]]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        away = float((models[i] - models[j]).norm())
        assert np.linalg.norm(spots[i] - spots[j]) == pytest.approx(away, rel=1e-6)
    assert max(mark["distance"] for mark in marks[:3]) < 1e-6 < min(mark["distance"] for mark in marks[3:])
    assert not Path("out/profiles.svg").exists()


@pytest.mark.slow
def test_one_dimension_and_features(fedflat, study: Path) -> None:
    run = runs_of(study)[0]
    code, out, _ = fedflat(f"landscape {run} {SMALL} --one-dimensional --features")
    assert code == 0
    assert "FedAvg, features: 450 test samples" in out
    files = {path.name for path in (run / "landscape").iterdir()}
    assert files == {"landscape.html", "landscape.json", "profiles.svg", "features.svg", "surfaces"}
    profile, features = index(f"{run}/landscape")
    assert Surface.load(run / "landscape" / profile["file"]).loss.shape == (1, 5)
    assert FeatureMap.load(run / "landscape" / features["file"]).points.shape == (450, 2)
    assert "kept from before" in fedflat(f"landscape {run} {SMALL} --one-dimensional --features")[1]


def test_labels_say_what_tells_the_runs_apart(study: Path, finished: Path) -> None:
    def labels(*paths: Path) -> list[str]:
        return [run.label for run in shown_runs(paths)]

    avg, sam, _ = runs_of(study)
    assert labels(study) == ["FedAvg", "FedSAM", "Scaffold"]
    assert labels(study, avg) == ["FedAvg", "FedSAM", "Scaffold"], "a run that is given twice is shown once"
    assert labels(avg, runs_of(study, seed=1)[0]) == ["FedAvg, seed 0", "FedAvg, seed 1"]
    assert labels(avg, sam, finished / "other") == [avg.name, sam.name, "other"]
    shutil.copytree(avg, "elsewhere/" + avg.name)
    assert labels(avg, Path("elsewhere") / avg.name) == [str(avg), f"elsewhere/{avg.name}"]


@pytest.mark.slow
def test_a_long_job_says_first_how_long(fedflat, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"landscape {study} --points 9 --one-dimensional"
    assert "about" not in fedflat(line)[1]
    monkeypatch.setattr("fedflat.cli.landscape.LONG", 0.0)
    out = fedflat(f"{line} --seed 2")[1]
    assert re.search(r"about \d+ s for 27 points, .* s each; --points, --max-samples or", out)


def test_runs_that_do_not_fit_together_are_noted(fedflat, study: Path, finished: Path) -> None:
    code, _, _ = fedflat(f"landscape {study} {finished / 'other'} {SMALL} --one-dimensional --out out")
    assert code == 0
    assert "Not the same loss: model differs between runs" in Path("out/landscape.html").read_text()


def test_help_teaches(fedflat) -> None:
    out = fedflat("landscape --help")[1]
    for text in ("fedflat landscape runs/digits", "--local", "--plane", "after Ctrl-C", "Li et al., 2018"):
        assert text in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("missing", "missing holds no finished run"),
        ("study --points 50", "--points = 50 must be an odd number"),
        ("study --range 0", "--range = 0.0 must be a number above 0"),
        ("study --max-samples 0", "--max-samples = 0 must be at least 1"),
        ("study --seed -1", "--seed = -1 must be at least 0"),
        ("study --local 6", "--local = 6 is more than the 5 clients of the next round"),
        ("study --out file", "file/surfaces cannot be made: Not a directory"),
        ("ONE --plane", "--plane: 3 models are needed, and there is 1; give more runs, or local models too"),
        ("study OTHER --plane", "--plane: runs must have one model and one data set; model.parameters is"),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(
    fedflat, study: Path, finished: Path, line: str, message: str
) -> None:
    Path("file").write_text("not a folder")
    before = sorted(Path().rglob("*"))
    line = line.replace("ONE", str(runs_of(study)[0])).replace("OTHER", str(finished / "other"))
    code, _, err = fedflat(f"landscape {line}")
    assert code == 2
    assert err.startswith("fedflat: ")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_what_a_damaged_run_lacks_is_named(fedflat, study: Path) -> None:
    avg, sam, scaffold = runs_of(study)
    for file in (avg / "checkpoint").iterdir():
        file.unlink()
    err = fedflat(f"landscape {avg} {SMALL} --local 1")[2]
    assert "--local: study/runs/FedAvg-seed0-" in err
    (sam / "model.safetensors").unlink()
    assert f"{sam}/model.safetensors is missing or damaged: it is missing" in fedflat(f"landscape {sam} {SMALL}")[2]
    (scaffold / "model.safetensors").write_bytes(b"nonsense")
    assert (
        f"{scaffold}/model.safetensors is missing or damaged: its SHA-256"
        in fedflat(f"landscape {scaffold} {SMALL}")[2]
    )
