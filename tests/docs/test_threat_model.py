"""The page of threats names tests that are there, one at least for everything that it says is protected."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat_model.md").read_text()
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    """The cells of the tables of what is protected, without their titles."""
    before, sockets = PAGE.split("## Which sockets listen")
    protected = before + sockets.partition("\n## ")[2]
    lines = [line for line in protected.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("| what ")]


def test_whatever_is_protected_names_a_test() -> None:
    assert len(rows()) >= 15
    assert [row[0] for row in rows() if not TEST.search(row[-1])] == []


def test_every_test_that_is_named_is_there() -> None:
    named = set(TEST.findall(PAGE))
    assert len(named) >= 30
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not (path := ROOT / "tests" / file).is_file() or not re.search(rf"^def {name}\(", path.read_text(), re.M)
    ]
    assert missing == []


def test_the_page_says_what_is_not_protected() -> None:
    unprotected = PAGE.split("## What is not protected")[1].split("## Operations")[0]
    assert len(re.findall(r"^\* \*\*", unprotected, re.M)) >= 10
