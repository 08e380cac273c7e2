"""The method that CONTRIBUTING.md tells to copy is a method, and trains."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedflat
from fedflat.core.method import Method
from fedflat.core.method_contract import CONTRACT
from fedflat.methods import all_methods, find
from support.federation import final_w

PATH = Path(fedflat.__file__).parent / "templates" / "method.py"


def imported(path: Path) -> ModuleType:
    """The module in a file that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # where annotations are looked up
    spec.loader.exec_module(module)
    return module


FedExample = imported(PATH).FedExample


@pytest.mark.parametrize("promise", CONTRACT)
def test_it_keeps_the_contract_of_all_methods(promise: str) -> None:
    CONTRACT[promise](FedExample())


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("example", "known"),
    [
        (FedExample(rho=0.0, beta=0.9), find("FedAvgM")(beta=0.9)),
        (FedExample(rho=0.3, beta=0.0), find("FedSAM")(rho=0.3)),
    ],
    ids=["rho = 0 is FedAvgM", "beta = 0 is FedSAM"],
)
def test_it_trains_as_a_known_method_in_its_limits(example: Method, known: Method, executor: str) -> None:
    assert (final_w(example, executor=executor) - final_w(known, executor=executor)).abs().max() <= 1e-12


@pytest.mark.parametrize("changes", [{"rho": 0.0}, {"beta": 0.0}])
def test_both_hyper_parameters_matter(changes: dict[str, float]) -> None:
    assert (final_w(FedExample(rho=0.3)) - final_w(FedExample(**{"rho": 0.3} | changes))).abs().max() > 1e-4


def test_its_citation_is_a_placeholder_that_no_method_has_kept() -> None:
    assert "Placeholder" in FedExample.paper.title
    for cls in all_methods().values():
        texts = (cls.paper.bibtex, *cls.sources.published.values(), *cls.sources.departures, *cls.sources.readings)
        assert "placeholder" not in " ".join(texts).lower(), cls.__name__
