"""`fedflat verify`: every kind of folder, what is damaged by name, and nothing written."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from fedflat.core.errors import ChangedWarning
from fedflat.data import load
from fedflat.experiments import runner, studies
from support.effort import effort
from support.files import mnist
from support.flower_fixtures import GridFederation, study_of
from support.hostile_runs import cases
from support.studies import run_spec, study_spec

CASES = cases()
SOME = list(CASES)[:: effort(7, 1)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    runner.run(run_spec(flatness=["eigenvalues"]), folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_study_is_whole_until_something_is_damaged(fedflat, tmp_path: Path) -> None:
    studies.carry_out_study(study_spec(seeds=[0], flatness=[]), tmp_path / "study")
    before = contents(tmp_path / "study")
    code, out, err = fedflat(f"verify {tmp_path / 'study'}")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "nothing is damaged"
    assert contents(tmp_path / "study") == before
    model = next(tmp_path.rglob("model.safetensors"))
    model.write_bytes(model.read_bytes()[:-1] + b"\0")
    code, out, _ = fedflat(f"verify {tmp_path / 'study'}")
    assert code == 1
    damaged = [line for line in out.splitlines() if line.startswith("damaged")]
    assert len(damaged) == 1
    assert f"{model}: its SHA-256 is another one; `fedflat resume {model.parent}` restores it" in damaged[0]
    assert out.splitlines()[-1] == "1 damaged"
    with warnings.catch_warnings():
        warnings.simplefilter("always", ChangedWarning)
        code, _, err = fedflat(f"resume {tmp_path / 'study'}")
    assert (code, err) == (
        0,
        f"fedflat: warning: {model.parent}: model.safetensors is damaged, and is restored\n",
    )
    assert fedflat(f"verify {tmp_path / 'study'}")[0] == 0


@pytest.mark.slow
def test_a_federation(fedflat, tmp_path: Path) -> None:
    tried = GridFederation(study_of(rounds=4), tmp_path)
    tried.serve()
    assert fedflat(f"verify {tried.out}")[0] == 0
    (tried.out / "metrics.parquet").unlink()
    newest = max((tried.out / "checkpoint").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    code, out, _ = fedflat(f"verify {tried.out}")
    assert code == 1
    assert out.splitlines()[-1] == "2 damaged"
    assert "fedflat flower rollback" in out


def test_a_cache(fedflat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "cache"))
    load("mnist", 2, data_dir=str(mnist(tmp_path / "data")), partial=True)
    assert fedflat(f"verify {tmp_path / 'cache'}")[0] == 0
    array = next((tmp_path / "cache").rglob("train-x.npy"))
    array.write_bytes(array.read_bytes()[:-1] + b"\7")
    code, out, _ = fedflat(f"verify {tmp_path / 'cache'}")
    assert code == 1
    assert "it is converted again at its next use" in out


@pytest.mark.parametrize("what", ["missing", "empty", "file"])
def test_another_folder_is_one_line(fedflat, tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    code, out, err = fedflat(f"verify {tmp_path / what}")
    assert (code, out) == (2, "")
    said = "holds neither a run, a study, a search, a federation nor a cache of data sets"
    assert err == f"fedflat: {tmp_path / what} {said}\n"


@pytest.mark.parametrize("name", SOME)
def test_hostile_folders_end_in_printable_lines(fedflat, finished: Path, tmp_path: Path, name: str) -> None:
    """With sums, which tell of the damage."""
    shutil.copytree(finished, tmp_path / "run")
    CASES[name](tmp_path / "run")
    code, out, err = fedflat(f"verify {tmp_path / 'run'}")
    assert (code, err) == (1, ""), (code, err)
    assert all(line.isprintable() for line in out.splitlines())
    assert any(line.startswith("damaged") for line in out.splitlines())
