"""The versions that GitHub tries are the stated ones, those of `make matrix`, and those of the page's table."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from benchmarks.matrix import FLOWERS, PYTHONS, TORCHES
from fedflat.federation.flower.internals import SUPPORTED, TESTED

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
RESULTS = json.loads((ROOT / "docs" / "matrix.json").read_text())
TRIED = RESULTS["pairs"]


def pinned(name: str) -> str:
    [version] = re.findall(rf"^{name}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return version


def python_of(job: dict[str, Any]) -> str:
    [version] = [step["with"]["python-version"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
    return version


def test_pythons_are_those_of_the_package() -> None:
    prefix = "Programming Language :: Python :: 3."
    classified = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert JOBS["versions"]["strategy"]["matrix"]["python"] == list(PYTHONS) == classified
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert sorted(PYTHONS, key=Version) == list(PYTHONS)


def test_torches_are_the_floor_the_tested_and_a_newer_one() -> None:
    assert JOBS["versions"]["strategy"]["matrix"]["torch"] == list(TORCHES)
    [floor] = [line.specifier for line in map(Requirement, PROJECT["dependencies"]) if line.name == "torch"]
    oldest, tested, newest = map(Version, TORCHES)
    assert [(one.operator, Version(one.version)) for one in floor] == [(">=", oldest)]
    assert tested == Version(pinned("torch"))
    assert newest > tested


def test_every_pair_is_tried_once() -> None:
    """The tested one with all tests, on the Python for which versions are locked, and in the other job all others."""
    matrix = JOBS["versions"]["strategy"]["matrix"]
    excluded = [(pair["python"], pair["torch"]) for pair in matrix["exclude"]]
    assert excluded == [(python_of(JOBS["locked"]), pinned("torch"))]
    assert set(excluded) < set(product(matrix["python"], matrix["torch"]))
    assert "make test" in [step.get("run") for step in JOBS["locked"]["steps"]]
    assert python_of(JOBS["systems"]) == python_of(JOBS["locked"]) == PYTHONS[0]


def test_each_python_was_tried_with_a_torch_and_no_test_failed() -> None:
    """The oldest Python with the oldest torch, and the newest with the newest; the page says which others were not."""
    tried = {(row["python"].rpartition(".")[0], row["torch"].partition("+")[0]) for row in TRIED}
    assert tried >= set(zip(PYTHONS, TORCHES, strict=True))
    assert tried <= set(product(PYTHONS, TORCHES))
    assert [row["failures"] for row in TRIED] == [[] for _ in TRIED]


def test_each_flower_was_tried_and_no_test_of_a_federation_failed() -> None:
    """The bounds are from the first minor version that was tried to the last; pages and the workflow name the same."""
    [bounds] = [line for line in map(Requirement, PROJECT["optional-dependencies"]["flower"]) if line.name == "flwr"]
    oldest, newest = (Version(one) for one in (TESTED[0], TESTED[-1]))
    assert bounds.specifier == SpecifierSet(SUPPORTED)
    assert f">={oldest.major}.{oldest.minor},<{newest.major}.{newest.minor + 1}" == SUPPORTED
    assert FLOWERS == TESTED == tuple(row["flwr"] for row in RESULTS["flower"])
    assert [row["failures"] for row in RESULTS["flower"]] == [[] for _ in TESTED]
    assert JOBS["flower"]["strategy"]["matrix"]["flower"] == [one for one in TESTED if one != pinned("flwr")]
    named = " or ".join(f"{one.major}.{one.minor}" for one in map(Version, TESTED))
    assert f"needs flwr {named}\n" in (ROOT / "docs" / "deploy.md").read_text()


def test_only_windows_may_fail() -> None:
    allowed = {name: job["continue-on-error"] for name, job in JOBS.items() if "continue-on-error" in job}
    assert allowed == {"systems": "${{ matrix.system == 'windows-latest' }}"}


def test_every_folder_and_extra_that_commands_name_is_there() -> None:
    """A folder of tests or an extra that was renamed would fail there alone."""
    lines = [line for job in JOBS.values() for step in job["steps"] for line in step.get("run", "").splitlines()]
    words = [word for line in lines for word in shlex.split(line, comments=True)]
    folders = [word for word in words if word.startswith("tests/")]
    assert folders == ["tests/federation", "tests/core", "tests/methods", "tests/rounds"]
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
    extras = {extra for word in words if word.startswith(".[") for extra in word[2:-1].split(",")}
    assert extras
    assert extras <= PROJECT["optional-dependencies"].keys()
