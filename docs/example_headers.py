"""The comment at the top of each file in `examples`: what the file shows, and the commands that run it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import Table

EXAMPLES = Path(__file__).parent.parent / "examples"


@dataclass(frozen=True)
class Header:
    """What the first paragraph says, and the commands, which are indented, in their order."""

    shows: str
    commands: tuple[str, ...]


def files() -> list[Path]:
    """Return every example, in alphabetical order."""
    return sorted(
        path for path in EXAMPLES.rglob("*.*") if path.name != "README.md" and "__pycache__" not in path.parts
    )


def header(path: Path) -> Header:
    """Read the header of an example. Raises ValueError, naming the file, if it lacks a paragraph or a command."""
    shows, _, rest = comment(path).partition("\n\n")
    commands = re.findall(r"^ {4}(\S.*)", rest, re.MULTILINE)
    if not shows or not commands:
        raise ValueError(
            f"{path.relative_to(EXAMPLES)}: the comment at its top must say what it shows, and its command"
        )
    return Header(" ".join(shows.split()).removesuffix("."), tuple(commands))


def comment(path: Path) -> str:
    """Return the comment at the top of a file: a program's docstring, or the first lines that begin with `#`."""
    text = path.read_text()
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(text)) or ""
    lines = re.match(r"(?:#!.*\n)?((?:#(?: .*)?\n)*)", text)
    return "\n".join(line[2:] for line in lines[1].splitlines()) if lines else ""


def table() -> str:
    """Return a row for each example."""
    rows = []
    for path in files():
        name, found = path.relative_to(EXAMPLES), header(path)
        command = next(line for line in found.commands if str(name) in line)
        rows.append((f"[{name}]({name})", found.shows, f"`{command}`"))
    return Table(("file", "what it shows", "how to run it"), rows).markdown()
