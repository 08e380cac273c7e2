"""The pages that are notebooks, as files that Jupyter opens: docs/notebooks/NAME.ipynb, without outputs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from docs.links import ELSEWHERE

DOCS = Path(__file__).parent
FOLDER = DOCS / "notebooks"
FRONT = re.compile(r"\A---\njupytext:.*?\n---\n", re.DOTALL)
CELL = re.compile(r"^```\{code-cell\} ipython3\n((?::[^\n]*\n)*)(.*?)^```\n", re.MULTILINE | re.DOTALL)
NAMED_BLOCK = re.compile(r"^```\{code-block\} (\w+)\n:caption: (\S+)\n", re.MULTILINE)
MARK = re.compile(r"^<!-- .* -->\n", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def notebook_pages() -> list[Path]:
    """Return the pages that are notebooks."""
    return sorted(path for path in DOCS.rglob("*.md") if FRONT.match(path.read_text()))


def notebooks() -> dict[Path, str]:
    """Return every notebook file as it should be."""
    return {FOLDER / f"{page.stem}.ipynb": notebook(page) for page in notebook_pages()}


def notebook(page: Path) -> str:
    """Return a page as a notebook in JSON: its cells, and between them its text."""
    pieces = CELL.split(FRONT.sub("", page.read_text()))
    cells = [words(pieces[0], page)]
    for options, code, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        cells += [program(code, options), words(text, page)]
    kept = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cell for cell in cells if cell["source"])]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": kept, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def words(text: str, page: Path) -> dict[str, Any]:
    """Return a cell of text, whose links lead from the folder of notebooks where they led from the page."""
    shown = MARK.sub("", NAMED_BLOCK.sub(r"`\2`\n\n```\1\n", text)).strip()
    shown = LINK.sub(lambda found: found[1] + moved(found[2], page) + found[3], shown)
    return {"cell_type": "markdown", "metadata": {}, "source": shown.splitlines(keepends=True)}


def moved(target: str, page: Path) -> str:
    """Return a link of a page as it is from the folder of notebooks."""
    if ELSEWHERE.match(target):
        return target
    path, mark, heading = target.partition("#")
    found = page.parent / path if path else page
    return os.path.relpath(found, FOLDER) + mark + heading


def program(code: str, options: str) -> dict[str, Any]:
    """Return a cell of code; one that the page hides is folded in a notebook."""
    metadata = {"jupyter": {"source_hidden": True}} if "remove-input" in options else {}
    cell = {"cell_type": "code", "metadata": metadata, "source": code.strip("\n").splitlines(keepends=True)}
    return cell | {"outputs": [], "execution_count": None}
