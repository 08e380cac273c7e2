"""Who fixes how matrix products round, and when."""

from __future__ import annotations

import json
import os

import pytest
import torch

from fedflat.core import native_libraries
from fedflat.core.native_libraries import fix_product_rounding
from support.fresh_process import output_of

SHOW = "print(os.environ.get('MKL_CBWR'))\n"
USERS = {  # what computes for a user, and so must ask for it
    "simulation": "ff.Simulation('mlp', ff.data.load('digits', 3), ff.methods.FedAvg())",
    "measure": "ff.flatness(ff.models.build('mlp', 10, (1, 8, 8)), ff.data.load('digits', 3), [])",
    "command line": "sys.argv = ['fedflat', 'foo']\ntry: main()\nexcept SystemExit: pass",
}
FIX = "fix_product_rounding()\n"
LATE = "torch.ones(4, 4) @ torch.ones(4, 4)\n"
CODES = {name: f"{SHOW}{user}\n{SHOW}" for name, user in USERS.items()}
CODES |= {"after a product": LATE + FIX + SHOW, "before and after": FIX + SHOW + LATE + FIX + SHOW}
FORKING = """
import json, os, sys, torch
import fedflat as ff, fedflat.engine.simulation
from fedflat.cli import execution, main
from fedflat.core.native_libraries import fix_product_rounding

for name, code in {codes!r}.items():
    print(json.dumps(name), flush=True)
    if not (child := os.fork()):
        try:
            exec(code)
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@pytest.fixture(scope="module")
def shown() -> dict[str, list[str]]:
    """What each of `CODES` prints in a process that has imported everything and has computed nothing."""
    found: dict[str, list[str]] = {}
    for line in output_of(FORKING.format(codes=CODES)).splitlines():
        if line.startswith('"'):
            now = found.setdefault(json.loads(line), [])
        else:
            now.append(line)
    return found


@forks
@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
def test_whoever_computes_asks_for_it_and_an_import_does_not(shown: dict[str, list[str]], user: str) -> None:
    assert shown[user] == ["None", "AUTO"]


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    fix_product_rounding()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


@forks
@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch computes without Intel's library")
def test_after_the_first_product_processes_that_are_started_round_as_this_one_does(shown: dict[str, list[str]]) -> None:
    """Intel's library refuses then, so the variable would hold for children only."""
    assert shown["after a product"] == ["None"]
    assert shown["before and after"] == ["AUTO", "AUTO"]


def test_without_intels_library_the_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    monkeypatch.setattr(native_libraries.ctypes, "CDLL", lambda _: object())
    fix_product_rounding()
    assert os.environ["MKL_CBWR"] == "AUTO"
