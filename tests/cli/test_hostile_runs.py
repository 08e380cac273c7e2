"""`report`, `landscape`, `flatness` and `resume` on folders made to do harm: one line, or what was asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fedflat.cli
from fedflat.experiments import studies
from fedflat.rounds.checksums import Checksums
from support.effort import chosen, effort
from support.hostile_runs import ESCAPE, cases, edited, pipe, sparse, written
from support.studies import study_spec

SECONDS = 5.0  # at most, for each
CASES = cases()
SOME = list(CASES)[:: effort(9, 1)]


@pytest.fixture(autouse=True)
def _blank_figures() -> None:
    """Figures are drawn here: a name could be taken for a formula."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two finished runs."""
    folder = tmp_path_factory.mktemp("finished")
    studies.carry_out_study(
        study_spec(seeds=[0], methods=["fedavg", "fedsam"], flatness=["eigenvalues"]), folder / "study"
    )
    return folder / "study"


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies of the runs, for one of them to be spoilt; without sums, which whoever does harm would write anew."""
    shutil.copytree(finished, tmp_path / "study")
    for sums in tmp_path.glob("study/runs/*/SHA256SUMS"):
        sums.unlink()
    first, second = sorted((tmp_path / "study" / "runs").iterdir())
    return first, second


def is_one_line(code: int, err: str) -> bool:
    return code == 2 and err.startswith("fedflat: ") and err.count("\n") == 1 and err[:-1].isprintable()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_report_of_it_is_one_line(fedflat, runs: tuple[Path, Path], name: str) -> None:
    CASES[name](runs[0])
    began = time.process_time()
    code, out, err = fedflat(f"report {runs[0]} --out alone")
    assert is_one_line(code, err), (code, err)
    assert out == ""
    if name in SOME:
        code, _, err = fedflat(f"report {runs[0]} {runs[1]} --out beside")
        assert is_one_line(code, err), (code, err)
    assert time.process_time() - began < SECONDS
    assert not any(path.suffix == ".html" for path in Path().rglob("*.html"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("line", ["landscape {} --points 3 --one-dimensional", "flatness {}", "resume {}"])
def test_other_commands_end_well_or_in_one_line(fedflat, runs: tuple[Path, Path], name: str, line: str) -> None:
    CASES[name](runs[0])
    code, _, err = fedflat(line.format(runs[0]))
    assert (code, err) == (0, "") or is_one_line(code, err), (code, err)


SHOWN = {
    "markup": edited("summary.json", "settings", "data", "name", value="[/x] <script>alert(1)</script> $\\frac$"),
    "unicode": edited("summary.json", "settings", "model", "class", value="☃ 模型"),
    "a rule of another kind": edited("summary.json", "settings", "participation", value={"class": "<b>", "x": "[/x]"}),
    "an unknown number": edited("summary.json", "summary", "later", value=1.5),
    "an infinite loss": edited("summary.json", "summary", "train_loss", value=float("inf")),
    "no number for drift": edited("summary.json", "summary", "drift", value=float("nan")),
    "other hyper-parameters": edited("summary.json", "settings", "method", value={
        "class": "x", "[red]": None, "x": "<b>"}),
    "more about the split": edited("summary.json", "settings", "split", "later", value=1),
    "an infinite curve": edited("flatness.json", 0, "curves", value={
        "c": {"x": [1.0, 2.0], "y": [float("inf"), 1.0], "x_label": "$", "y_label": "[b]", "logarithmic": True}}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("names", chosen([[*SHOWN]], [[name] for name in SHOWN]), ids=lambda names: names[0])
def test_what_is_only_odd_is_shown(fedflat, runs: tuple[Path, Path], names: list[str]) -> None:
    """All in one run, and in `make test-all` one after another: what stops a report stops it among others, too."""
    for name in names:
        SHOWN[name](runs[0])
    code, out, err = fedflat(f"report {runs[0]} {runs[1]} --out there")
    assert (code, err) == (0, "")
    assert "FedSAM" in out
    assert "<script>alert(1)" not in Path("there/report.html").read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [("study.toml", b"\xff"), ("study.toml", b"seeds = " + b"[" * 100_000), ("study.toml", b"methods = 3"),
     ("study.toml", b"seeds = [" + b"".join(b"%d," % i for i in range(9000)) + b"]")],
)  # fmt: skip
def test_a_hostile_study(fedflat, runs: tuple[Path, Path], name: str, content: bytes) -> None:
    study = runs[0].parent.parent
    Checksums(study, required=True).write(name, lambda path: path.write_bytes(content))
    for command in ("report", "flatness", "landscape", "resume"):
        code, _, err = fedflat(f"{command} {study}")
        assert is_one_line(code, err), (command, code, err)


@pytest.mark.slow
def test_a_study_without_runs_and_with_hostile_pictures(fedflat, runs: tuple[Path, Path]) -> None:
    study = runs[0].parent.parent
    written("landscape/a.svg", "<svg><script>alert(1)</script></svg>")(study)
    assert fedflat(f"report {study}")[0] == 0
    assert "<script>alert(1)" not in (study / "report.html").read_text()
    for spoil in (sparse("landscape/a.svg", 2**25), pipe("landscape/a.svg")):
        spoil(study)
        code, _, err = fedflat(f"report {study}")
        assert is_one_line(code, err), err
        assert "a.svg" in err
    shutil.rmtree(study / "runs")
    code, _, err = fedflat(f"report {study}")
    assert is_one_line(code, err)
    assert "holds no finished run" in err


def test_a_folder_whose_name_does_harm(fedflat, runs: tuple[Path, Path]) -> None:
    named = runs[0].parent / ESCAPE.replace("/", "")
    shutil.copytree(runs[0], named)
    (named / "summary.json").write_text("{}")
    code, _, err = fedflat(f"report '{named}'")
    assert is_one_line(code, err), err


REAL = ["summary: brackets", "metrics: many rows", "summary.json: a pipe"]


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(REAL[-1:], REAL))
def test_the_real_command(runs: tuple[Path, Path], name: str) -> None:
    CASES[name](runs[0])
    environment = os.environ | {"PYTHONPATH": str(Path(fedflat.cli.__file__).parents[2])}
    command = [sys.executable, "-m", "fedflat", "report", str(runs[0])]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert is_one_line(ended.returncode, ended.stderr), ended.stderr
