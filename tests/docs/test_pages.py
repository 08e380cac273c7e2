"""What the pages for maintainers name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["SECURITY.md"]
PLACEHOLDER = re.compile(r"[A-Z]{2,}|\.\.\.|\*|<")  # NAME.py stands for a file that a reader makes


def named(page: str) -> set[str]:
    """The paths that a page names: links, and what has a slash in `code`."""
    text = (ROOT / page).read_text()
    code = re.findall(r"`([\w.-]+/[\w./-]*)`", text)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    return {path for path in (*code, *links) if not PLACEHOLDER.search(path.removesuffix(".md").rpartition("/")[2])}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    assert len(named(page)) >= 10
    assert sorted(path for path in named(page) if not (ROOT / path).exists()) == []
