"""`fedflat new` writes files that work as they are; `fedflat check-method` says which promises a method breaks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedflat.cli import installation
from support.effort import few_methods
from support.own_code import write_own_code

BROKEN = """
from fedflat.methods.fedavg import FedAvg

class Mine(FedAvg):
    def step(self, w, client, down, grad, ctx):
        g = grad(w)
        return g / g.norm(), client

class Raises(FedAvg):
    def step(self, w, client, down, grad, ctx):
        return w @ 3, client
"""


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.slow
def test_every_skeleton_works_as_it_is_and_its_tests_pass(fedflat, tmp_path: Path) -> None:
    for kind in ("method", "model", "data"):
        code, out, _ = fedflat(f"new {kind} own_{kind}")
        assert code == 0
        for line in out.splitlines()[1:]:
            program, _, words = line.strip().partition(" ")
            if program == "fedflat":
                assert fedflat(words + (" --flatness []" if words.startswith("run") else ""))[0] == 0, line
    ended = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, check=False)
    assert ended.returncode == 0


@pytest.mark.parametrize("there", [True, False])
def test_pytest_is_installed_first_if_it_is_missing(fedflat, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """It is not among what fedflat needs."""
    monkeypatch.setattr(installation, "find_spec", lambda name: name if there else None)
    _, out, _ = fedflat("new model mynet")
    assert ("  pip install pytest\n  pytest test_mynet.py\n" in out) == (not there)
    assert "  pytest test_mynet.py\n" in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("new partition mine", "partition: there are skeletons of a method, a model, a data"),
        ("new method My-Method", "NAME 'My-Method' must be small letters, digits and _, such as my_method"),
        ("new method ../mine", "NAME '../mine' must be"),
        ("new method there", "there.py exists already"),
        ("check-method there.py:Mine", "there is no 'Mine'"),
        ("check-method own.py:net", "is a function, not a method"),
        ("check-method nosuch", "unknown method 'nosuch'"),
    ],
)
def test_what_cannot_be_is_one_line(fedflat, tmp_path: Path, line: str, message: str) -> None:
    write_own_code(tmp_path)
    (tmp_path / "there.py").touch()
    code, _, err = fedflat(line)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["own.py", "there.py"]


@pytest.mark.slow
def test_a_broken_method_is_told_what_and_where(fedflat, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    code, out, _ = fedflat("check-method mine.py:Mine")
    assert code == 1
    [line] = [line for line in out.splitlines() if line.startswith("broken  a stack is its clients one by one:")]
    assert "hooks reduce over the last axis only" in line
    assert "broken  a stack trains as one client after another:" in out
    assert "kept    nothing is written in place" in out
    code, out, err = fedflat("check-method mine.py:Raises")
    assert (code, err) == (1, "")
    [line] = [line for line in out.splitlines() if line.startswith("broken  it trains: step raised TypeError: ")]
    assert line.endswith("(mine.py, line 11)")


@pytest.mark.slow
def test_methods_of_the_package_keep_the_trials(fedflat) -> None:
    for name in few_methods():
        code, out, _ = fedflat(f"check-method {name}")
        assert code == 0, out
        assert out.splitlines()[-1] == "all promises are kept"
