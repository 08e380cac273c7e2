"""`fedflat flatness` on finished and stopped runs."""

from __future__ import annotations

import json
import shutil
from math import ceil
from pathlib import Path

import pytest

from fedflat.experiments import studies
from fedflat.metrics.flatness import all_measures
from support.studies import study_spec

SMALL = "--data.clients 10 --client.epochs 1 --client.batch_size 20 --rounds 2 --participation 0.5 --flatness []"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, nothing measured."""
    folder = tmp_path_factory.mktemp("finished") / "study"
    studies.carry_out_study(study_spec(seeds=[0], rounds=2, flatness=[]), folder)
    return folder


@pytest.fixture
def study(fedflat, finished: Path) -> Path:
    """A copy of the study for one test, in its working directory."""
    return shutil.copytree(finished, Path("study"))


def findings(study: Path) -> list[list[dict]]:
    return [json.loads(path.read_text()) for path in sorted(study.rglob("flatness.json"))]


@pytest.mark.slow
def test_a_study_is_measured_and_the_report_shows_it(fedflat, study: Path) -> None:
    assert findings(study) == []
    code, out, err = fedflat(
        f'flatness {study} --measure eigenvalues --measure \'{{"name": "sharpness", "rho": 0.3}}\''
    )
    assert (code, err) == (0, "")
    assert "sharpness(rho=0.3)" in out
    assert not out.startswith("\n"), "a bar that is not shown leaves no line"
    assert "all 1,347 training samples" in out
    assert [[one["measure"] for one in run] for run in findings(study)] == [["Eigenvalues", "Sharpness"]] * 2
    fedflat(f"report {study}")
    assert "sharpness(rho=0.3)" in (study / "report.html").read_text()


@pytest.mark.slow
def test_a_measure_taken_again_replaces_the_old_one(fedflat, study: Path) -> None:
    for samples in (100, 200):
        fedflat(f"flatness {study} --measure sharpness --max-samples {samples}")
    fedflat(f"flatness {study} --measure gradient-norm")
    for run in findings(study):
        assert [one["measure"] for one in run] == ["Sharpness", "GradientNorm"]
        assert f"{ceil(1347 / 7)} of 1,347 training samples" in run[0]["protocol"]


def test_a_stopped_run_is_measured_where_it_is(fedflat) -> None:
    fedflat(f"run {SMALL} --checkpoint_every 1 --out one")
    Path("one/summary.json").unlink()
    assert fedflat("flatness one --measure sharpness")[0] == 0


def test_probes_and_measures_from_the_configuration(fedflat) -> None:
    line = f"run {SMALL} --out one --probes sharpness --probe_every 1".replace(
        "--flatness []", "--flatness eigenvalues"
    )
    code, out, _ = fedflat(line)
    assert code == 0
    assert "sharpness" in out
    assert [one["measure"] for one in json.loads(Path("one/flatness.json").read_text())] == ["Eigenvalues"]


def test_every_measure_is_listed(fedflat) -> None:
    out = fedflat("flatness --list")[1]
    assert all(name in out for name in all_measures())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("flatness", "give the folder of a run or a study, or --list"),
        ("flatness missing", "missing holds neither a run (config.toml) nor a study (study.toml)"),
        ("flatness study --measure foo", "measures.0: unknown name 'foo'; known are "),
        ('flatness study --measure \'{"name": "sharpness", "rho": -1}\'', "measures.0.rho: "),
        ("flatness study --measure '{name'", "--measure {name: "),
    ],
)
def test_a_mistake_is_one_line(fedflat, study: Path, line: str, message: str) -> None:
    code, _, err = fedflat(line)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
