"""`fedflat methods`: the list, those alike, what differs, and a search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedflat.reports.method_list import all_facts
from support.own_code import write_own_code


def test_methods_like_one_are_listed(fedflat) -> None:
    code, out, err = fedflat("methods --like mofed-sam")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].strip() == "methods like MoFedSAM"
    assert re.search(r"^ FedCM +Momentum +(\d+) of \1 +drift correction ", out, re.MULTILINE)


def test_what_differs_between_two_is_shown(fedflat) -> None:
    code, out, err = fedflat("methods mofedsam --like fedsam")
    assert (code, err) == (0, "")
    assert re.search(r"MoFedSAM +beta = 0.1: ", out)
    assert re.search(r"FedSAM +w_i <- w_i - lr g_i\(w_i \+ rho g_i\(w_i\) / \|\|g_i\(w_i\)\|\|\)", out)
    assert re.search(r"both +gradients per local step: 2 ", out)


def test_an_own_method_is_compared_and_searched(fedflat, tmp_path: Path) -> None:
    """`Mine` is FedSAM with a setting more."""
    write_own_code(tmp_path)
    code, out, err = fedflat("methods own.py:Mine --like fedsam")
    assert (code, err) == (0, "")
    assert re.search(r"nearest shared class +both +FedSAM ", out)
    assert [line for line in out.splitlines() if re.search(r" Mine +(?!beside)", line) and " = " in line] == [
        line for line in out.splitlines() if "scale = 2.0: factor of the radius" in line
    ]
    assert re.search(r"^ FedSAM +FedSAM ", fedflat("methods --like own.py:Mine")[1].splitlines()[4])
    code, out, _ = fedflat("methods own.py:Mine --search 'radius scaled'")
    assert code == 0
    assert re.search(r" Mine +docstring, settings +FedSAM with a radius that is scaled\.", out)
    assert fedflat("methods own.py:Mine --search momentum")[0] == 1


def test_words_are_found_or_the_exit_code_is_1(fedflat) -> None:
    code, out, err = fedflat("methods --search 'momentum server'")
    assert (code, err) == (0, "")
    assert re.search(r"^ FedAvgM .*docstring.* FedAvg with heavy-ball momentum at the server\.", out, re.MULTILINE)
    assert " FedProx " not in out
    assert fedflat("methods --search 'momentum quince'") == (
        1,
        "no method has all of these words: momentum quince\n",
        "",
    )
    assert fedflat("methods --search [/x]")[1] == "no method has all of these words: [/x]\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--like fedsamm", "unknown method 'fedsamm'; .*; did you mean FedSAM?"),
        ("fedsam2 --like fedavg", "unknown method 'fedsam2'; .*; did you mean FedSAM?"),
        ("FedSMO --search momentum", "unknown method 'FedSMO'; .*; did you mean FedSMOO?"),
        ("FedSAM --like fed-sam", "--like FedSAM: this is the method itself; name another one"),
        ("--like FedSAM --search x", "--like and --search do not go together; give one of them"),
        ("--search ''", "--search: name a word to search for, such as momentum"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(fedflat, line: str, message: str) -> None:
    code, out, err = fedflat(f"methods {line}")
    assert (code, out) == (2, "")
    assert re.fullmatch("fedflat: " + re.escape(message).replace(r"\.\*", ".*") + "\n", err)


def test_help_shows_two_examples_that_work_and_the_exit_code(fedflat) -> None:
    out = fedflat("methods --help")[1]
    examples = re.findall(r"^ fedflat (methods .*?) *$", out, re.MULTILINE)
    assert len(examples) == 2
    for line in examples:
        code, shown, err = fedflat(line)
        assert (code, err) == (0, "")
        assert any(one.name in shown for one in all_facts())
    assert "The exit code is 1" in out
