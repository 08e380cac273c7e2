"""The versions that are installed have hashes, and none of them, nor a floor, is one with a known hole."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = {"hatchling", "editables", "trove-classifiers", "setuptools", "tomlkit"}  # that constraints do not name
# The first version without the hole, from the advisories: GitHub's, PyPA's and the CVE records.
HOLES = {
    "torch": {"CVE-2025-32434": "2.6"},
    "scipy": {"CVE-2023-25399": "1.10"},
    "scikit-learn": {"CVE-2024-5206": "1.5.0"},
    "pydantic": {"CVE-2024-3772": "2.4.0"},
    "pyarrow": {"CVE-2023-47248": "14.0.1"},
    "pillow": {"CVE-2026-25990": "12.1.1", "CVE-2026-59197": "12.3.0", "CVE-2026-96639": "13.0.0"},
    "jinja2": {"CVE-2024-56201": "3.1.5", "CVE-2025-27516": "3.1.6"},
    "transformers": {"CVE-2025-6921": "4.53.0", "CVE-2026-4372": "5.3.0", "CVE-2026-9856": "5.10.0"},
    "cryptography": {"CVE-2024-12797": "44.0.1", "CVE-2026-26007": "46.0.5", "CVE-2026-39892": "46.0.7"},
    "mlflow-skinny": {"CVE-2026-4137": "3.11.0"},
}


def requirements() -> Iterator[Requirement]:
    """What the package and its extras need."""
    lines = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    return (found for found in map(Requirement, lines) if found.name != "fedflat")


def pinned(file: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def floor(requirement: Requirement) -> Version:
    return max(Version(one.version) for one in requirement.specifier if one.operator in (">=", "=="))


@pytest.mark.parametrize("name", HOLES)
def test_no_floor_admits_a_version_with_a_known_hole(name: str) -> None:
    fixed = max(map(Version, HOLES[name].values()))
    floors = [floor(found) for found in requirements() if canonicalize_name(found.name) == name]
    assert floors
    assert min(floors) >= fixed


def test_the_tested_versions_are_what_the_package_asks_for() -> None:
    tested = pinned("constraints.txt")
    named = [found for found in requirements() if canonicalize_name(found.name) in tested]
    assert len(named) >= 25
    assert [str(one) for one in named if not one.specifier.contains(tested[canonicalize_name(one.name)])] == []


@pytest.mark.parametrize("file", ["locked/plain.txt", "locked/dev.txt"])
def test_locked_versions_are_the_tested_ones_each_with_hashes(file: str) -> None:
    locked, tested = pinned(file), pinned("constraints.txt")
    assert {name for name in locked if name not in tested} <= BUILD
    assert {name: version for name, version in locked.items() if tested.get(name, version) != version} == {}
    blocks = re.split(r"^(?=\S+==)", (ROOT / file).read_text(), flags=re.MULTILINE)[1:]
    assert [block.split("==")[0] for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", block)] == []


def test_everything_that_is_needed_is_locked_but_torch() -> None:
    """Its hashes are those of the index that it comes from: one for the CPU, others for each kind of GPU."""
    plain, everything = pinned("locked/plain.txt"), pinned("locked/dev.txt")
    needed = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert needed - plain.keys() == {"torch"}
    assert plain.items() <= everything.items()
    assert pinned("constraints.txt").keys() - everything.keys() == {"torch"}


def test_every_locked_version_works_with_the_oldest_python() -> None:
    """One that asks for a later patch release could not be installed with Debian 12's 3.11.2."""
    oldest, asked = PROJECT["requires-python"].removeprefix(">=") + ".0", {}
    for name in pinned("locked/dev.txt"):
        with suppress(PackageNotFoundError):  # of another system
            asked[name] = metadata(name).get("Requires-Python") or ""
    assert len(asked) >= 100
    assert {name: words for name, words in asked.items() if not SpecifierSet(words).contains(oldest)} == {}
