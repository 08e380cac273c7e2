"""Who fixes how matrix products round, and when."""

from __future__ import annotations

import os

import pytest
import torch

from fedflat.core import matrix_products
from fedflat.core.matrix_products import fix_product_rounding
from support.fresh_process import output_of

SHOW = "import os; print(os.environ.get('MKL_CBWR'))\n"
USERS = {  # what computes for a user, and so must ask for it
    "simulation": "ff.Simulation('mlp', ff.data.load('digits', 3), ff.methods.FedAvg())",
    "measure": "ff.flatness(ff.models.build('mlp', 10, (1, 8, 8)), ff.data.load('digits', 3), [])",
    "command line": "sys.argv = ['fedflat', 'foo']\ntry: main()\nexcept SystemExit: pass",
}
LATE = "import torch; torch.ones(4, 4) @ torch.ones(4, 4)\n"


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_whoever_computes_asks_for_it_and_an_import_does_not(user: str) -> None:
    imports = "import sys, fedflat as ff, fedflat.engine.simulation; from fedflat.cli import execution, main\n"
    assert output_of(f"{imports}{SHOW}{user}\n{SHOW}").split() == ["None", "AUTO"]


def test_what_the_user_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    fix_product_rounding()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch computes without Intel's library")
def test_after_the_first_product_processes_that_are_started_round_as_this_one_does() -> None:
    """Intel's library refuses then, so the variable would hold for children only."""
    fix = "from fedflat.core.matrix_products import fix_product_rounding; fix_product_rounding()\n"
    assert output_of(LATE + fix + SHOW).split() == ["None"]
    assert output_of(fix + SHOW + LATE + fix + SHOW).split() == ["AUTO", "AUTO"]


def test_without_intels_library_the_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    monkeypatch.setattr(matrix_products.ctypes, "CDLL", lambda _: object())
    fix_product_rounding()
    assert os.environ["MKL_CBWR"] == "AUTO"
