"""What became of the fast tests with other versions is counted, and kept beside what is known of other pairs."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import matrix
from benchmarks.matrix import FLOWERS, PYTHONS, TORCHES, Trial, constrained, counted, keep, trials
from docs.measured_tables import flower_table, versions_table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_b" name="test_c[1]"/>
<testcase classname="tests.a.test_b" name="test_c[2]"><failure/></testcase>
<testcase classname="tests.a.test_b" name="test_d"><skipped/></testcase>
<testcase classname="tests.a.test_b" name="test_e"/>
<testcase classname="tests.a.test_b" name="test_e"><error/></testcase>
<testcase classname="tests.a.test_f" name="test_c[1]"/>
<testcase classname="" name="tests.a.test_g"><error/></testcase>
<testcase classname="" name="tests.a.test_g"><error/></testcase>
</testsuite></testsuites>"""


def row(
    python: str,
    torch: str,
    passed: int = 1,
    failures: tuple[str, ...] = (),
    system: str = "Linux",
    flwr: str = "1.41.0",
) -> matrix.Row:  # fmt: skip
    versions = {"python": python, "torch": torch, "numpy": "2.4.6", "system": system, "flwr": flwr}
    tests = {"passed": passed, "failed": len(failures), "skipped": 0, "failures": list(failures)}
    return {**versions, **tests, "seconds": 1234}


def test_a_test_is_counted_once_and_fails_if_its_end_does() -> None:
    """Two processes of pytest report the file that they cannot import."""
    assert counted(ElementTree.parse(StringIO(REPORT))) == {
        "passed": 2, "failed": 3, "skipped": 1,
        "failures": ["tests/a/test_b.py::test_c[2]", "tests/a/test_b.py::test_e", "tests/a/test_g.py"],
    }  # fmt: skip


def test_a_pair_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    """Whatever the last number of Python, and the build of torch; torch 2.13 is newer than 2.8."""
    file = tmp_path / "matrix.json"
    for one in (row("3.12.1", "2.13.0+cpu"), row("3.11.7", "2.13.0+cpu"), row("3.11.7", "2.8.0+cu128"),
                row("3.12.4", "2.13.0", 2), row("3.11.7", "2.8.0", 3, system="Darwin")):  # fmt: skip
        keep(file, one)
    assert json.loads(file.read_text())["pairs"] == [
        row("3.11.7", "2.8.0", 3, system="Darwin"), row("3.11.7", "2.8.0+cu128"), row("3.11.7", "2.13.0+cpu"),
        row("3.12.4", "2.13.0", 2),
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["matrix.json"]


def test_rows_of_flower_stand_beside_the_pairs(tmp_path: Path) -> None:
    file, pair = tmp_path / "matrix.json", row("3.11.7", "2.13.0")
    old, new = row("3.11.7", "2.13.0+cpu"), row("3.11.7", "2.13.0+cpu", flwr="1.42.0")
    del pair["flwr"]  # as rows were kept at first
    keep(file, pair)
    for one in (new, row("3.11.7", "2.13.0+cpu", 9), old):
        keep(file, one, "flower")
    assert json.loads(file.read_text()) == {"pairs": [pair], "flower": [old, new]}


def test_only_torch_or_flower_differs_from_the_tested_versions() -> None:
    versions = "a==1\ncertifi==5\nflwr==1.41.0\ntorch==2.13.0\ntorch-x==2\nuv==4\nuvloop==3\n"
    assert constrained(versions, Trial("3.11", "2.8.0")) == versions.replace("torch==2.13.0", "torch==2.8.0")
    assert (
        constrained(versions, Trial("3.11", flower="1.42.0"))
        == "a==1\nflwr==1.42.0\ntorch==2.13.0\ntorch-x==2\nuvloop==3\n"
    )


def test_what_is_tried_is_what_the_command_names() -> None:
    pairs = {Trial(python, torch) for python in PYTHONS for torch in TORCHES}
    flowers = {Trial(PYTHONS[0], flower=flower) for flower in FLOWERS}
    assert set(trials([], [], [])) == pairs | flowers
    assert set(trials(["3.12"], [], [])) == {one for one in pairs if one.python == "3.12"}
    assert trials([], [], ["1.42.0"]) == [Trial(PYTHONS[0], flower="1.42.0")]
    assert trials(["3.12"], ["2.8.0"], ["1.42.0"]) == [Trial("3.12", "2.8.0"), Trial(PYTHONS[0], flower="1.42.0")]
    assert len({one.name for one in trials([], [], [])}) == len(pairs | flowers)


def test_what_cannot_be_installed_is_told_and_the_next_pair_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first pair has no torch; the second has a failure, and its environment stays; that of the third goes."""
    outcomes = {"2.8.0": None, "2.9.0": row("3.11.7", "2.9.0", failures=("tests/a.py::b",)),
                "2.10.0": row("3.11.7", "2.10.0")}  # fmt: skip

    def install(folder: Path, python: str, trial: Trial) -> Path:
        if outcomes[trial.torch] is None:
            raise matrix.subprocess.CalledProcessError(1, ["pip"])
        folder.mkdir(parents=True)
        return folder / trial.torch

    monkeypatch.setattr(matrix, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(matrix, "command_of", lambda python: python)
    monkeypatch.setattr(matrix, "install", install)
    monkeypatch.setattr(matrix, "tried", lambda program, *_: outcomes[program.name])
    torches = [word for torch in outcomes for word in ("--torch", torch)]
    out = tmp_path / "matrix.json"
    monkeypatch.setattr(sys, "argv", ["matrix", "--python", "3.11", *torches, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        matrix.main()
    assert ended.value.code
    assert "3.11-2.8.0: Command" in capsys.readouterr().out
    assert json.loads(out.read_text())["pairs"] == [outcomes["2.9.0"], outcomes["2.10.0"]]
    assert [folder.name for folder in (tmp_path / "environments").iterdir()] == ["3.11-2.9.0"]


@pytest.mark.parametrize("code", [-9, 2, 5])
def test_tests_that_were_killed_or_stopped_or_not_found_are_no_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int
) -> None:
    ended = matrix.subprocess.CompletedProcess([], code, stdout=b"{}")
    monkeypatch.setattr(matrix.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(matrix.subprocess.CalledProcessError):
        matrix.tried(tmp_path / "python", 1)


def test_a_python_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "--python", "3.99"])
    with pytest.raises(SystemExit, match=r"^--python 3\.99: there is no python3\.99 on the path$"):
        matrix.main()


def test_the_table_names_what_failed() -> None:
    failed = row("3.11.7", "2.8.0+cu128", 3500, ("tests/a/test_b.py::test_c[2]",))
    [cells] = versions_table({"pairs": [failed]}).rows
    assert cells == (
        "3.11.7", "2.8.0+cu128", "2.4.6", "Linux", "3,500", "1, `test_b.py::test_c[2]`", "0", "1,234"
    )  # fmt: skip


def test_the_table_of_flower_names_its_version() -> None:
    [cells] = flower_table({"pairs": [], "flower": [row("3.11.7", "2.13.0+cpu", 700, flwr="1.42.0")]}).rows
    assert cells == ("1.42.0", "3.11.7", "2.13.0+cpu", "Linux", "700", "0", "0", "1,234")
