"""A planted defect is caught by a test that fails with it alone and passes without it, and by no other."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks import planted_defects
from benchmarks.planted_defects import Defect, Planter

FILES = {
    "src/rooms.py": "def total(a, b):\n    return a + b\n\n\ndef mean(a, b):\n    return (a + b) / 2\n\n\nUNUSED = 1\n",
    "tests/first/test_total.py": """
class TestTotal:
    def test_of_two(self):
        from rooms import total
        assert total(2, 3) == 5
""",
    "tests/second/test_mean.py": """
import pathlib
from rooms import mean

def test_that_fails_now_and_then():
    times = pathlib.Path("times")
    times.write_text(times.read_text() + "." if times.exists() else ".")
    assert len(times.read_text()) > 1

def test_that_always_fails():
    assert not mean

def test_mean():
    assert mean(2, 4) == 3
""",
}


def defect(name: str, old: str, new: str) -> Defect:
    return Defect(name, "first", "a wrong sign", "src/rooms.py", old, new)


@pytest.fixture
def planter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planter:
    """Of a checkout with two rooms."""
    source, folder = tmp_path / "source", tmp_path / "copies"
    for name, content in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content)
    subprocess.run(["git", "init", "--quiet", source], check=True)
    folder.mkdir()
    monkeypatch.setattr(planted_defects, "CHECKS", {})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a fifth of the time
    return Planter(source, folder, {"first": ["tests/first"], "second": ["tests/second"]})


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.slow
def test_the_tests_of_the_room_catch_a_defect(planter: Planter, tmp_path: Path) -> None:
    found = planter.in_room(defect("sign", "return a + b", "return a - b"))
    assert (found.caught_by, found.tried) == ("tests/first/test_total.py::TestTotal::test_of_two", "room")
    assert (tmp_path / "source/src/rooms.py").read_text() == FILES["src/rooms.py"]


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.slow
def test_other_rooms_are_asked_for_the_defects_that_are_left(planter: Planter) -> None:
    """Both defects are planted together; failures that have nothing to do with a defect count for none."""
    both = defect("mean", "(a + b) / 2", "(a + b) / 3"), defect("unused", "UNUSED = 1", "UNUSED = 2")
    assert [planter.in_room(one).caught_by for one in both] == [None, None]
    found = {one.name: outcome for one, outcome in planter.in_whole(both, workers=1)}
    assert {name: outcome.caught_by for name, outcome in found.items()} == {
        "mean": "tests/second/test_mean.py::test_mean",
        "unused": None,
    }
    assert {outcome.tried for outcome in found.values()} == {"make test"}


@pytest.mark.parametrize("old", ["a + b", "a * b"])
def test_a_text_that_is_not_there_once_is_refused(planter: Planter, old: str) -> None:
    with pytest.raises(ValueError, match=r"sign: src/rooms.py has .* times, not once"):
        planter.check([defect("sign", old, "a - b")])


def test_a_defect_of_two_parties_is_in_both_files(tmp_path: Path) -> None:
    for name in ("one.py", "other.py"):
        (tmp_path / name).write_text("add(mask)\nadd(sum)\n")
    table = {"name": "x", "room": "first", "what": "", "file": "one.py", "old": "add(mask)", "new": "pass"}
    also = [{"file": "other.py", "old": "add(mask)", "new": ""}, {"file": "one.py", "old": "sum", "new": "all"}]
    found = Defect.of(table | {"also": also}, before=False).planted(tmp_path)
    assert found == {"one.py": "pass\nadd(all)\n", "other.py": "\nadd(sum)\n"}
    with pytest.raises(ValueError, match=r"x: other.py has 'add' 2 times, not once"):
        Defect.of(table | {"also": [also[0] | {"old": "add"}]}, before=False).planted(tmp_path)


def test_the_version_before_may_have_other_files() -> None:
    table = {"name": "x", "room": "first", "what": "", "file": "new.py", "old": "1", "new": "2"}
    table |= {"before_file": "old.py", "before_old": "0"}
    assert (Defect.of(table, before=False).file, Defect.of(table, before=False).old) == ("new.py", "1")
    there = Defect.of(table, before=True)
    assert (there.file, there.old, there.new) == ("old.py", "0", "2")


def test_names_are_unique_and_every_room_has_a_defect() -> None:
    for before in (False, True):
        defects, rooms = planted_defects.read(before)
        assert len({one.name for one in defects}) == len(defects)
        assert {one.room for one in defects} == rooms.keys()


def test_every_defect_of_the_list_can_still_be_planted() -> None:
    """What it replaces stands in the code once, and the room's tests are there."""
    root = Path(__file__).parents[2]
    content = tomllib.loads((root / "benchmarks" / "planted_defects.toml").read_text())
    for table in content["defect"]:
        Defect.of(table, before=False).planted(root)
        assert all((root / place).exists() for place in content["rooms"][table["room"]])
