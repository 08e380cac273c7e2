"""Docstrings for Sphinx: plain text with `code`, lists and indented equations, as reStructuredText."""

from __future__ import annotations

import re
from collections.abc import Sequence

CODE = re.compile(r"(`[^`]+`)")
MARKUP = re.compile(r"([\\*_|])")  # characters that mean nothing in our docstrings, and something to Sphinx
ITEM = re.compile(r"(\* |- )")
ARGUMENT = re.compile(r"([a-z]\w*(?:, [a-z]\w*)*): ")  # such as "rounds: default 100"


def as_restructured_text(lines: Sequence[str]) -> list[str]:
    """Return the lines of a docstring: words stay words, `code` is code, indented lines keep their breaks."""
    written: list[str] = []
    for paragraph in paragraphs(lines):
        written += [*block(paragraph), ""]
    return written


def paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Return the lines between empty ones."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        else:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def block(paragraph: list[str]) -> list[str]:
    """Return one paragraph: a list, what arguments mean, equations as they stand, or running text."""
    if ITEM.match(paragraph[0]):
        return [words(line) if not ITEM.match(line) else line[:2] + words(line[2:]) for line in paragraph]
    if ARGUMENT.match(paragraph[0]):
        return arguments(paragraph)
    if any(line.startswith(" ") or "<-" in line for line in paragraph):
        return [f"| {' ' * (len(line) - len(line.lstrip()))}{words(line.lstrip())}" for line in paragraph]
    return [words(line) for line in paragraph]


def arguments(paragraph: list[str]) -> list[str]:
    """Return what each argument means, as a list: a line that begins with a name begins an item, others continue it."""
    items: list[str] = []
    for line in paragraph:
        if ARGUMENT.match(line):
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    return [f"* ``{name}``: {words(meaning)}" for name, meaning in (item.split(": ", 1) for item in items)]


def words(text: str) -> str:
    """Return running text in which nothing is markup but `code`."""
    pieces = CODE.split(text)
    return "".join(f"`{piece}`" if piece.startswith("`") else MARKUP.sub(r"\\\1", piece) for piece in pieces)
