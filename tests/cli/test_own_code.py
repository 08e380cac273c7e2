"""A method, model, data set, partition and measure outside the package, everywhere a name can be given."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.core.object_references import allow_code, load_object
from fedflat.experiments import studies
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.spec import StudySpec
from fedflat.methods import METHODS
from support.effort import in_test_all
from support.own_code import write_own_code


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The file of a study whose every part is the user's own; it is in the working directory of `fedflat`."""
    return write_own_code(tmp_path)


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a study with its runs in `all`; nothing is written into it."""
    folder = tmp_path_factory.mktemp("own")
    with allow_code():
        studies.carry_out_study(StudySpec.load(write_own_code(folder)), folder / "all")
    return folder


def digests(folder: Path) -> dict[str, str]:
    """The digest of every run's model, by run."""
    files = sorted(folder.glob("runs/*/model.safetensors"))
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
def test_a_study_of_own_code_is_carried_out_reported_and_gone_on_with(fedflat, study: Path, tmp_path: Path) -> None:
    code, out, err = fedflat("compare own.toml --out all")
    assert (code, err) == (0, "")
    assert "Mine" in out
    whole = digests(tmp_path / "all")
    assert len(whole) == 4
    assert fedflat("report all")[0] == 0, "a report runs no code"
    code, _, err = fedflat("resume all")
    assert code == 2
    assert "names code" in err
    assert "--allow-code" in err
    for summary in (tmp_path / "all").glob("runs/Mine-*/summary.json"):
        summary.unlink()
    assert fedflat("resume all --allow-code")[0] == 0
    assert digests(tmp_path / "all") == whole


@pytest.mark.slow
def test_resume_asks_for_the_permission_before_it_trains(fedflat, study: Path, tmp_path: Path) -> None:
    """The first method of the study is the package's own; its run was lost."""
    fedflat("compare --methods fedavg --methods own.py:Mine --seeds 0 --rounds 1 --last 1 --data.clients 5 --out all")
    [lost] = (tmp_path / "all" / "runs").glob("FedAvg-*")
    for line in ("resume all", "resume all --rounds 2"):
        shutil.rmtree(lost, ignore_errors=True)
        code, out, err = fedflat(line)
        assert (code, out) == (2, "")
        assert "own.py:Mine names code" in err
        assert not lost.exists()
    assert fedflat("resume all --allow-code")[0] == 0


@pytest.mark.slow
def test_the_method_is_the_class_in_the_file(carried_out: Path) -> None:
    """`Mine` with scale 0.5 and rho 0.1 is FedSAM with rho 0.05."""
    models = digests(carried_out / "all")
    for seed in (0, 1):
        mine, theirs = (
            [d for name, d in models.items() if name.startswith(f"{m}-seed{seed}")] for m in ("Mine", "FedSAM")
        )
        assert mine == theirs
    assert models.keys() == {path.name for path in (carried_out / "all" / "runs").iterdir()}


@pytest.mark.slow
def test_the_run_folder_names_every_file_with_its_digest(fedflat, study: Path, tmp_path: Path) -> None:
    fedflat(
        "run --method own.py:Mine --data.name own.py:blobs --data.clients 4 --model own.py:net --rounds 1 --out one"
    )
    [segment] = json.loads((tmp_path / "one" / "env.json").read_text())
    sha256 = hashlib.sha256((tmp_path / "own.py").read_bytes()).hexdigest()
    expected = {"file": str(tmp_path / "own.py"), "sha256": sha256}
    assert segment["code"] == dict.fromkeys(("own.py:Mine", "own.py:blobs", "own.py:net"), expected)


@pytest.mark.slow
def test_changed_code_is_a_warning_and_strict_refuses(fedflat, study: Path, tmp_path: Path) -> None:
    line = "run --method own.py:Mine --rounds 1 --data.clients 5 --flatness [] --out one"
    assert fedflat(line)[0] == 0
    with (tmp_path / "own.py").open("a") as file:
        file.write("# another thought\n")
    code, _, err = fedflat(f"{line} --strict")
    assert code == 2
    assert "own.py has changed since the rounds so far; without --strict" in err
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = fedflat(line)
    assert code == 0
    assert "warning: one: own.py has changed since the rounds so far" in err


def test_flags_give_the_fields_of_an_own_class(fedflat, study: Path, tmp_path: Path) -> None:
    fedflat("run --method own.py:Mine --method.scale 3 --method.rho=0.25 --partition own.py:Turns --partition.kept 2 "
            "--rounds 1 --data.clients 5 --flatness [] --out one")  # fmt: skip
    spec = StoredRun.open(tmp_path / "one").directory.spec()
    assert spec.method.values() == {"name": f"{tmp_path}/own.py:Mine", "server_lr": 1.0, "rho": 0.25, "scale": 3.0}
    assert spec.partition.values() == {"name": f"{tmp_path}/own.py:Turns", "kept": 2}


@pytest.mark.slow
def test_landscape_and_flatness_need_the_permission(fedflat, study: Path, tmp_path: Path) -> None:
    own = "--method own.py:Mine --data.name own.py:blobs --model.name mlp"
    fedflat(f"run {own} --rounds 1 --data.clients 5 --flatness [] --out one")
    for line in ("flatness one --measure gradient-norm", "landscape one --one-dimensional --points 3"):
        code, _, err = fedflat(line)
        assert code == 2
        assert "names code" in err
        assert fedflat(f"{line} --allow-code")[0] == 0
    written = [path for path in (tmp_path / "one/landscape").iterdir() if path.is_file()]
    assert {"landscape.html", "landscape.json"} <= {path.name for path in written}
    assert not [path.name for path in written if str(tmp_path) in path.read_text()], "a page to hand on has no path"
    fedflat("run --rounds 1 --data.clients 5 --flatness [] --out plain")
    code, out, _ = fedflat("flatness plain --measure own.py:Length")
    assert code == 0, "a measure that the command line names is the user's own"
    assert "length" in out


@pytest.mark.slow
def test_a_folder_from_elsewhere_runs_nothing(fedflat, study: Path, tmp_path: Path) -> None:
    fedflat("compare own.toml --out all --seeds 0")
    (tmp_path / "own.py").write_text("raise SystemExit('this was run')\n")
    for line in ("report all", "verify all"):
        assert fedflat(line)[0] == 0
    run = next((tmp_path / "all" / "runs").iterdir())
    for line in (f"resume {run}", f"flatness {run}", f"landscape {run}", "resume all"):
        _, out, err = fedflat(line)
        assert "this was run" not in out + err


BAD = {
    "gone.py:Mine": "there is no file",
    "no_such_package.module:Mine": "there is no module 'no_such_package'",
    "own.py:Nine": "there is no 'Nine'; did you mean Mine?",
    "own.py:Turns": "is the class Turns, not a method: a subclass of fedflat.Method",
    "own.py:net": "is a function, not a method",
    "raises.py:Mine": "line 1 raises RuntimeError: not today",
    "short.py:Mine": r"Mine.step(self, w, grad) is called with (self, w, client, down, grad, ctx): too many positional",
    "bare.py:Mine": "Mine names no record `server`: class Mine(Method, server=...)",
    "own.py": "unknown name 'own.py'",
}


@pytest.mark.parametrize("name", BAD)
def test_every_wrong_door_is_one_line(fedflat, study: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "raises.py").write_text("raise RuntimeError('not today')\n")
    (tmp_path / "short.py").write_text(
        "from fedflat.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    def step(self, w, grad):\n        pass\n"
    )
    (tmp_path / "bare.py").write_text(
        "import fedflat as ff\nclass Mine(ff.Method):\n    def step(self, w, client, down, grad, ctx): ...\n"
        "    def finish(self, w, client, down, ctx): ...\n    def update(self, server, mean, ctx): ...\n"
    )
    code, _, err = fedflat(f"run --method {name} --rounds 1 --out one")
    assert code == 2
    assert BAD[name] in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--method own.py:Mine --method.scal 3", "method.scal: unknown key; did you mean scale?"),
        ("--method own.py:Mine --method.scale -3", "method.scale: must be a number in [0, inf), got -3"),
        ("--loss own.py:net", "loss: own.py:net: a loss of your own is given in Python, fedflat.Simulation(loss=...)"),
        ("--model own.py:blobs", "makes a tuple, not a torch.nn.Module"),
        ("--model own.py:Turns", "makes a Turns, not a torch.nn.Module"),
        ("--data.name own.py:net", "raises TypeError: net() missing 2 required positional arguments"),
        ("--partition own.py:Mine", "is the class Mine, not a partition"),
        ("--flatness own.py:Mine", "is the class Mine, not a measure of flatness"),
    ],
)
def test_an_own_thing_in_the_wrong_place_is_one_line(fedflat, study: Path, flags: str, message: str) -> None:
    code, _, err = fedflat(f"run {flags} --rounds 1 --out one")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_the_page_of_an_own_method(fedflat, study: Path, tmp_path: Path) -> None:
    """With a paper, that of the class it extends, and without one."""
    (tmp_path / "plain.py").write_text(
        "from fedflat.core.method import Method\nfrom fedflat.core.records import Delta, Model\n"
        "class Plain(Method, server=Model, down=Model, up=Delta):\n"
        "    def step(self, w, client, down, grad, ctx): return grad(w), client\n"
        "    def finish(self, w, client, down, ctx): return Delta(w - down.w), client\n"
        "    def update(self, server, mean, ctx): return Model(server.w + mean.delta)\n"
    )
    code, out, err = fedflat("methods own.py:Mine")
    assert (code, err) == (0, "")
    assert "FedSAM with a radius that is scaled." in out
    assert "scale" in out
    code, out, err = fedflat("methods plain.py:Plain")
    assert (code, err) == (0, "")
    assert "Plain" in out


def test_a_model_that_cannot_be_loaded_names_the_setting(fedflat, study: Path) -> None:
    code, _, err = fedflat("run --model own.py:nothing --rounds 1 --out one")
    assert code == 2
    assert err.startswith("fedflat: model: ")
    assert "own.py:nothing: there is no 'nothing'" in err


def test_two_files_of_one_name_are_not_taken_for_each_other(fedflat, study: Path, tmp_path: Path) -> None:
    """Their runs would have one folder, and the second the results of the first."""
    (tmp_path / "other").mkdir()
    write_own_code(tmp_path / "other")
    code, _, err = fedflat("compare --methods own.py:Mine --methods other/own.py:Mine --rounds 1 --out both")
    assert code == 2
    assert "have one name and would be taken for each other: rename one file" in err
    assert not (tmp_path / "both").exists()


def test_python_needs_the_permission_for_names_and_not_for_objects(study: Path, tmp_path: Path) -> None:
    name = f"{tmp_path}/own.py:Mine"
    with pytest.raises(ValueError, match=r"fedflat\.allow_code\(\)"):
        ff.methods.find(name)
    with ff.allow_code():
        assert ff.methods.find(name) is load_object(name, METHODS)
    with allow_code():
        data = ff.data.load(f"{tmp_path}/own.py:blobs", clients=4)
        mine = ff.methods.find(name)()
    assert data.name == "own.py:blobs"
    ff.Simulation("mlp", data, mine, rounds=1).run()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_jobs_compute_the_same_bits(fedflat, carried_out: Path, tmp_path: Path) -> None:
    assert fedflat(f"compare {carried_out / 'own.toml'} --out two --jobs 2")[0] == 0
    assert digests(tmp_path / "two") == digests(carried_out / "all")


@in_test_all
@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_ranks_compute_the_same_bits(fedflat, carried_out: Path, tmp_path: Path) -> None:
    """Each rank reads the command line, and the file that it names, as one process does."""
    config = next((carried_out / "all" / "runs").glob("Mine-seed0-*")) / "config.toml"
    assert fedflat(f"run {config} --ranks 2 --out three")[0] == 0
    model = (tmp_path / "three" / "model.safetensors").read_bytes()
    assert hashlib.sha256(model).hexdigest() == digests(carried_out / "all")[config.parent.name]
