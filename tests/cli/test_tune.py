"""`fedflat tune` as a user meets it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune_digits.toml"
SEARCH = """
methods = ["FedAvg", "FedSAM"]
rounds = 2
seeds = [0]
last = 1
data = {{ clients = 5, validation = 0.2 }}
tune = {{ configurations = {configurations}, rounds = [1, 2], box = {{ {box} }} }}
"""


def write(box: str = '"client.lr" = [0.1, 0.2, 0.3, 0.4]', configurations: int = 6) -> None:
    Path("search.toml").write_text(SEARCH.format(box=box, configurations=configurations))


@pytest.mark.slow
def test_search_again_and_compare(fedflat) -> None:
    write()
    code, out, err = fedflat("tune search.toml --dry-run")
    assert (code, err) == (0, "")
    assert "3, 1" in out
    code, out, err = fedflat("tune search.toml")
    assert (code, err) == (0, "")
    assert "validation accuracy" in out
    assert "test accuracy" not in out
    assert "fedflat compare runs/search/winners.toml --out runs/search-winners" in out
    code, _, err = fedflat("resume runs/search")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds a search; resume it with `fedflat tune runs/search/tune.toml --out runs/search`" in err
    before = Path("runs/search/ledger.json").read_text()
    code, again, _ = fedflat("tune search.toml")
    assert again.splitlines()[-9:] == out.splitlines()[-9:], "the same table, and nothing is trained"
    assert Path("runs/search/ledger.json").read_text() == before
    code, out, _ = fedflat("compare runs/search/winners.toml --out winners")
    assert code == 0
    assert "test accuracy" in out


@pytest.mark.slow
def test_a_search_that_numbers_decided_says_so(fedflat) -> None:
    """With these step sizes nothing is learned, so that all configurations are as good as the initial weights."""
    write(box='"client.lr" = [1e-9, 2e-9, 3e-9]')
    _, out, _ = fedflat("tune search.toml --client.lr 4e-9")
    [line] = [line for line in out.splitlines() if line.startswith("FedAvg: after round")]
    assert "was broken by draw order" in line


def test_the_example_is_a_search(fedflat) -> None:
    shutil.copy(EXAMPLE, "tune_digits.toml")
    code, out, err = fedflat("tune tune_digits.toml --dry-run")
    assert (code, err) == (0, "")
    assert out.count("9, 3, 1") == 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"box": "FedSAM = { radius = [0.1] }"},
            "tune.box.FedSAM.radius: no method FedSAM has a field 'radius'",
        ),
        ({"box": '"client.lr" = []'}, "box.client.lr must be a list of values, or {low = ..., high = ...}, got []"),
        ({"configurations": 1}, "tune.configurations = 1 is less than the number of methods, 2"),
    ],
)
def test_a_mistake_is_one_line(fedflat, change: dict, line: str) -> None:
    write(**change)
    code, out, err = fedflat("tune search.toml --out runs/search")
    assert (code, out) == (2, "")
    assert line in err
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists()


def test_a_search_needs_a_file(fedflat) -> None:
    code, _, err = fedflat("tune --rounds 3")
    assert (code, err.count("\n")) == (2, 1)
    assert "tune needs a TOML file with a section [tune]" in err
