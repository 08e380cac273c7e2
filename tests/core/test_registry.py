"""Each registry finds its entries by their files, data sets by their table; listing names imports none of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.registry import known_names, matching, plain
from fedflat.data import partition, sources
from fedflat.data.dataset import FileDataset
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec
from fedflat.metrics.flatness import measures

METHOD = """
from fedflat.core.method import Citation
from fedflat.methods.fedavg import FedAvg
class Added(FedAvg):
    paper = Citation("k", "A, B", "T", "V", 2020)
class Shared(FedAvg):
    pass
"""
PARTITION = """
from fedflat.data.partition.iid import IID
from fedflat.data.partition.scheme import Partition
class Unfinished(Partition):
    pass
class Added(IID):
    pass
"""
MEASURE = """
from fedflat.metrics.flatness.measures.sharpness import Sharpness
class Added(Sharpness):
    pass
"""
MODEL = """
from torch import nn
def build(classes, shape):
    return nn.Linear(shape[0], classes)
"""

REGISTRIES = {
    ff.methods: (METHOD, ff.methods.all_methods),
    partition: (PARTITION, partition.all_partitions),
    measures: (MEASURE, measures.all_measures),
    ff.models: (MODEL, ff.models.model_names),
}


@contextmanager
def added(package: ModuleType, folder: Path, file: str = "added") -> Iterator[None]:
    """A registry with one more file inside the block."""
    content, listed = REGISTRIES[package]
    (folder / f"{file}.py").write_text(content)
    forget = getattr(listed, "cache_clear", lambda: None)
    forget()
    package.__path__.append(str(folder))
    try:
        yield
    finally:
        package.__path__.remove(str(folder))
        forget()
        sys.modules.pop(f"{package.__name__}.{file}", None)
        vars(package).pop(file, None)


@pytest.mark.parametrize("package", REGISTRIES, ids=[package.__name__ for package in REGISTRIES])
def test_a_new_file_is_a_new_entry(package: ModuleType, tmp_path: Path) -> None:
    """And the only one: neither a folder, an imported class, nor a base class is an entry."""
    content, listed = REGISTRIES[package]
    before = list(listed())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").touch()
    with added(package, tmp_path):
        assert list(listed()) == [*before, "Added" if content is METHOD else "added"]
        if content is MODEL:
            assert ff.models.build("added", classes=2, shape=(3,)).weight.shape == (2, 3)
        else:
            assert list(listed().values())[-1].__module__ == f"{package.__name__}.added"
    assert list(listed()) == before


def test_a_new_entry_in_the_table_is_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    described = FileDataset("A set.", classes=2, sizes={}, layouts=())
    monkeypatch.setitem(sources.TABLE, "added", described)
    assert "added" in sources.source_names()
    assert sources.source("ADDED") is described


def test_a_method_is_found_whatever_its_file_is_called(tmp_path: Path) -> None:
    with added(ff.methods, tmp_path, file="other_name"):
        assert ff.methods.find("a-d-d-e-d") is ff.methods.Added
        with pytest.raises(AttributeError, match="has no attribute 'added'"):
            getattr(ff.methods, "added")  # noqa: B009
        with pytest.raises(ValueError, match=r"unknown method 'Shared'; known are Centralised, Ditto, .*, Added$"):
            ff.methods.find("Shared")


@pytest.mark.parametrize("name", ["FedLESAM-D", "fedlesam_d", "FEDLESAMD", "Fed-LESAM_d"])
def test_case_hyphens_and_underscores_do_not_matter(name: str) -> None:
    assert plain(name) == "fedlesamd"
    assert matching(name, ["FedLESAM", "FedLESAM_D"]) == "FedLESAM_D"
    assert ff.methods.find(name) is ff.methods.FedLESAM_D


def test_what_is_no_known_name_matches_nothing() -> None:
    assert matching("FedLESAM_S", ["FedLESAM", "FedLESAM_D"]) is None
    assert matching("FedSAM", []) is None


ONE = """
import sys
import fedflat as ff
from fedflat.metrics.flatness.measures import find

def loaded(package):
    return sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith(f"fedflat.{package}."))

ff.models.model_names(), ff.data.source_names()
assert not {"pyarrow", "PIL"} & set(sys.modules), "readers are imported when files are read"
print(loaded("models"), loaded("methods"), loaded("metrics.flatness.measures"))
ff.methods.find("fedsam"), ff.methods.FedProx, find("gradient-norm"), ff.models.build("mlp", classes=2, shape=(2,))
print(loaded("models"), loaded("methods"), loaded("metrics.flatness.measures"))
"""


@pytest.mark.slow
def test_only_the_entries_that_are_used_are_imported() -> None:
    done = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == "['blocks', 'fetched'] [] []", "which finds models of the hub on the disk, and is none"
    assert after == "['blocks', 'fetched', 'mlp'] ['fedavg', 'fedprox', 'fedsam'] ['gradient_norm']", (
        "FedSAM is a FedAvg"
    )


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("fedsma", "FedSAM"),
        ("Fed_Avg2", "FedAvg"),
        ("lesam", "FedLESAM"),
        ("zzz", None),
        ("", None),
        ("x" * 10**6, None),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_it_is_most_like(name: str, close: str | None) -> None:
    known = ["FedAvg", "FedLESAM", "FedSAM"]
    assert known_names(name, known) == "known are FedAvg, FedLESAM, FedSAM" + (
        f"; did you mean {close}?" if close else ""
    )


@pytest.mark.parametrize(
    ("ask", "close"),
    [
        (lambda: ff.methods.find("FedSAMM"), "FedSAM"),
        (lambda: ff.models.build("lenett", 10), "lenet"),
        (lambda: ff.models.build("mlp", 10, (3,), hiden=[3]), "hidden"),
        (lambda: ff.data.load("cifar", clients=3), "cifar10"),
        (lambda: ff.data.load("digits", clients=3, validaton=0.1), "validation"),
        (lambda: measures.find("sharpnes"), "sharpness"),
        (lambda: validated(RunSpec, {"partition": {"name": "dirichlett"}}), "dirichlet"),
        (lambda: validated(RunSpec, {"method": {"name": "fedavgg"}}), "FedAvg"),
    ],
)
def test_every_registry_says_what_was_meant(ask, close: str) -> None:
    with pytest.raises(InputError) as error:
        ask()
    assert str(error.value).endswith(f"; did you mean {close}?")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [(np.zeros((500, 9)), np.zeros(500)), np.zeros((500, 9)), None, 3, ["digits"]])
def test_what_is_no_name_is_not_printed(name: object) -> None:
    with pytest.raises(
        InputError, match=r"data.name must be the name of a data set, got a .*; .*FederatedData.split"
    ) as error:
        ff.data.load(name, clients=3)
    assert len(str(error.value)) < 200
