from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks import against
from benchmarks.against import ROOT, Comparison, compare, comparison_table, unpacked
from benchmarks.measurement import Spread
from benchmarks.results import Settings
from fedflat.core.errors import InputError
from support.effort import in_test_all

BEGIN = "        started = perf_counter()\n"  # of a round


def comparison(low: float, high: float) -> Comparison:
    return Comparison("W3", ("compiled", "stacked"), (0.004, 0.002), Spread(2.0, low, high, 7))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.06, 3, "slower"), (1.04, 3, "no difference seen"), (0.5, 0.94, "faster"), (0.5, 0.96, "no difference seen")],
)
def test_all_turns_have_to_agree(low: float, high: float, verdict: str) -> None:
    assert comparison(low, high).verdict == verdict
    [row] = comparison_table("abc", [comparison(low, high)]).rows
    assert row == ("W3", "compiled", "stacked", "4 ms", "2 ms", f"2 [{low}, {high}]", "7", verdict)


def test_a_commit_has_its_own_source(tmp_path: Path) -> None:
    source = unpacked("HEAD", tmp_path)
    assert (source / "fedflat" / "__init__.py").is_file()


@pytest.mark.parametrize("commit", ["no-such-commit", "--help", "HEAD:src"])
def test_what_is_no_commit_is_refused(commit: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="git knows no commit"):
        unpacked(commit, tmp_path)


def test_an_unknown_work_is_refused_before_anything_is_done(bench) -> None:
    code, _, error = bench("W9 --against HEAD")
    assert code == 2
    assert error == "fedflat: --against times W2, W2-512, W3, W5, and not 'W9'\n"


@in_test_all
@pytest.mark.slow
def test_a_checkout_whose_rounds_are_slower_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench) -> None:
    """The rounds of this checkout burn a tenth of a second, so it is the slower one of the two."""
    slow, own = tmp_path / "slow", tmp_path / "own"
    for folder in (slow, own):
        shutil.copytree(ROOT / "src", folder / "src")
    file = slow / "src" / "fedflat" / "engine" / "simulation.py"
    text = file.read_text()
    assert text.count(BEGIN) == 1
    burn = "        while process_time() < started: pass\n"
    file.write_text(
        text.replace(BEGIN, f"        from time import process_time; started = process_time() + 0.1\n{burn}{BEGIN}")
    )
    monkeypatch.setattr(against, "unpacked", lambda commit, folder: own / "src")
    monkeypatch.setattr(against, "ROOT", slow)
    code, out, _ = bench("W3 --against HEAD --quick --repeats 2")
    assert code == 1
    assert "slower" in out


STAND_IN = """
class Simulation:
    def __init__(self, **_): pass
    def round(self): pass
    def settings(self): return {"executor": "none"}

class methods:
    FedAvg = dict

def Client(*_, **__): pass

FederatedData = Client
"""


def package(folder: Path, text: str) -> Path:
    """Write a package of that name with this text; return what has to be on the path."""
    (folder / "src" / "fedflat").mkdir(parents=True)
    (folder / "src" / "fedflat" / "__init__.py").write_text(text)
    return folder / "src"


@pytest.mark.slow
def test_rounds_that_fail_end_the_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of this checkout, by a stand-in that has no work to choose an executor for, have begun."""
    package(tmp_path / "own", STAND_IN)
    broken = package(tmp_path / "broken", "raise ImportError('broken')")
    monkeypatch.setattr(against, "ROOT", tmp_path / "own")
    monkeypatch.setattr(against, "unpacked", lambda commit, folder: broken)
    with pytest.raises(RuntimeError, match="broken/src have ended"):
        compare("HEAD", ["W3"], Settings(repeats=1, quick=True))
