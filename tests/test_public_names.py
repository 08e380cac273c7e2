"""What users see of `fedflat`: a name is imported when it is used, and importing the package changes nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedflat as ff
from support.fresh_process import output_of


def test_an_import_imports_no_library_and_sets_no_variable() -> None:
    code = "import os, sys; before = dict(os.environ); import fedflat\n"
    code += "print(os.environ == before, 'torch' in sys.modules, len(fedflat.__version__.split('.')))"
    assert output_of(code).split() == ["True", "False", "3"]


@pytest.mark.slow
def test_every_name_can_be_had() -> None:
    assert set(ff.__all__) <= set(dir(ff))
    code = "import fedflat as ff\nfor name in reversed(ff.__all__): print(getattr(ff, name).__name__)"
    names = [name.rpartition(".")[2] for name in output_of(code).split()]
    assert names == ff.__all__[::-1]


@pytest.mark.slow
def test_names_of_packages_and_of_what_is_in_them() -> None:
    code = "import fedflat as ff; from fedflat import Client, methods, Simulation\n"
    code += "print(ff.methods.FedSAM.__name__, ff.metrics.flatness.__name__, Simulation.__name__, Client().lr)"
    assert output_of(code).split() == ["FedSAM", "fedflat.metrics.flatness", "Simulation", "0.1"]


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fedflat' has no attribute 'Simulatoin'"):
        ff.Simulatoin  # noqa: B018
    with pytest.raises(AttributeError, match=r"module 'fedflat.reports' has no attribute 'compar'"):
        ff.reports.compar  # noqa: B018
    with pytest.raises(ImportError):
        from fedflat import simulation  # noqa: F401


def test_type_checkers_see_the_names_from_where_they_are_imported() -> None:
    """The imports that only type checkers read: all names, each the same object as the one that users get."""
    tree = ast.parse(Path(ff.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: statement.module for statement in block.body for alias in statement.names}
    assert set(seen) == set(ff.__all__)
    for name, module in seen.items():
        origin = __import__(f"fedflat.{module}" if module else f"fedflat.{name}", fromlist=[name])
        assert getattr(origin, name, origin) is getattr(ff, name), name
