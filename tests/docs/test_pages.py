"""What the pages for maintainers name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "SECURITY.md")}
PLACEHOLDER = re.compile(r"\b(test_)?(NAME|PAPER|ITEM)\b")  # a file that a reader makes


def named(text: str) -> set[str]:
    """The paths that a page names, in links, in `code` and in commands."""
    paths = re.findall(r"(?<![\w/.])(?:docs|examples|src|tests|benchmarks)/[\w./-]*\w", text)
    return {path for path in (*paths, *re.findall(r"\]\(([^)#:]+)\)", text)) if not PLACEHOLDER.search(path)}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    assert len(named(PAGES[page])) >= 10
    assert sorted(path for path in named(PAGES[page]) if not (ROOT / path).exists()) == []


def test_every_test_and_table_of_tests_exists() -> None:
    """Such as `test_parameter_counts`, and `EQUAL`, to which a newcomer adds a line."""
    page = PAGES["CONTRIBUTING.md"]
    files = {path for path in named(page) if path.startswith("tests/") and path.endswith(".py")}
    tests = "\n".join((ROOT / path).read_text() for path in files)
    wanted = {*re.findall(r"`(test_\w+)`", page), *re.findall(r"`([A-Z]{5,})`", page)} - {"FEDFLAT_DATA"}
    assert len(wanted) >= 8
    assert sorted(name for name in wanted if not re.search(rf"^(def {name}\(|{name}\b.* = )", tests, re.M)) == []


def test_the_rooms_are_the_folders_of_the_package() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGES["CONTRIBUTING.md"].split("## The rooms")[1].split("\n## ")[0], re.M)
    told = {room for row in rows for room in re.findall(r"`(\w+)`", row)}
    folders = {path.parent.name for path in (ROOT / "src" / "fedflat").glob("*/__init__.py")}
    assert told == folders - {"flower"}, "of which the text says what it is"


# Remove the mark when the Makefile has the tiers: the test passes then, which a strict mark reports.
def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = set(re.findall(r"(?:`|^ *)make ([a-z-]+)", PAGES["CONTRIBUTING.md"], re.MULTILINE))
    assert len(wanted) >= 5
    assert sorted(wanted - targets) == []
