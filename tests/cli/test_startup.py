"""What a command imports before it works: time is measured by `python -m benchmarks.startup`, here it is modules."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from typer.main import get_command

from fedflat.cli import results, run
from fedflat.cli.app import app
from fedflat.engine import ranks
from fedflat.metrics.flatness import subject
from support.fresh_process import commands

LIBRARIES = {
    "torch", "numpy", "pyarrow", "scipy", "sklearn", "pydantic", "matplotlib", "jinja2",
    "safetensors", "PIL", "sympy", "transformers", "flwr",
}  # fmt: skip
WORDS = {  # that stand before the flags
    "recipes show": "fedgf/table1",
    "recipes run": "fedgf/table1",
    "flower export": "run.toml app",
}


def command_lines(group: click.Group, before: str = "") -> list[str]:
    """Return every command with the words before it, those of groups too."""
    lines = []
    for name, command in group.commands.items():
        inside = isinstance(command, click.Group)
        lines += command_lines(command, f"{before}{name} ") if inside else [f"{before}{name}"]
    return lines


EVERY = command_lines(get_command(app))


@pytest.mark.slow
def test_help_and_version_import_no_library() -> None:
    groups = dict.fromkeys(line.split()[0] for line in EVERY)
    for command in commands("--version", "--help", *(f"{line} --help" for line in [*groups, *EVERY])):
        assert (command.code, command.err) == (0, ""), command
        assert not LIBRARIES & set(command.packages), command.line


def test_a_mistyped_flag_of_any_command_imports_no_library() -> None:
    own = [line for line in EVERY if line != "flower node"]  # whose further flags are Flower's
    lines = [f"{line} {WORDS.get(line, '')} --mistyped.flag 1" for line in own]
    for command in commands(*lines, "run x.toml --client.learning_rate 1", "compare --method.rho 1", "nonsense"):
        assert command.code == 2, command
        assert not LIBRARIES & set(command.packages), command.line


def test_a_missing_word_imports_no_library() -> None:
    for command in commands("run --out", "resume", "report"):
        assert command.code == 2, command
        assert not LIBRARIES & set(command.packages), command.line


def test_lists_import_no_library(tmp_path: Path) -> None:
    methods = ("methods", "methods --like fedsam", "methods fedcm --like fedsam", "methods --search momentum")
    lists = (*methods, "data list", "recipes list", "recipes list fedgf")
    for command in commands(*lists, FEDFLAT_CACHE=str(tmp_path)):
        assert (command.code, command.err) == (0, ""), command
        assert not LIBRARIES & set(command.packages), command.line


NUMBERS = {"torch", "numpy"}
SETTINGS = NUMBERS | {"pyarrow", "pydantic", "safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "needed",
    [  # what one process runs in this order, and all that it may have imported by then
        {"methods FedSMOO": NUMBERS, "doctor": NUMBERS, "flatness --list": NUMBERS, "run --keys": SETTINGS,
         "run --data.clients 5 --rounds 1 --flatness [] --executor sequential --out OUT":
         SETTINGS | {"sklearn", "scipy"}},
        {"recipes show fedvssam/figure1": SETTINGS | {"PIL", "scipy"}},
    ],
)  # fmt: skip
def test_a_command_imports_what_it_needs(needed: dict[str, set[str]], tmp_path: Path) -> None:
    for command in commands(*needed, folder=tmp_path):
        assert (command.code, command.err) == (0, "")
        assert "torch" in command.packages, "the test sees what it looks for"
        assert LIBRARIES & set(command.packages) <= needed[command.line], command.line


def test_the_defaults_of_options_are_those_of_the_functions() -> None:
    """They are written twice, because the functions' modules take seconds to import."""
    assert run.PATIENCE == ranks.PATIENCE
    assert results.MAX_SAMPLES == subject.MAX_SAMPLES
