"""What a command imports before it works: time is measured by `python -m benchmarks.startup`, here it is modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.cli import results, run
from fedflat.engine import ranks
from fedflat.metrics.flatness import subject
from support.fresh_process import commands

LIBRARIES = {
    "torch", "numpy", "pyarrow", "scipy", "sklearn", "pydantic", "matplotlib", "jinja2",
    "safetensors", "PIL", "sympy", "transformers", "flwr",
}  # fmt: skip
COMMANDS = ("run", "compare", "resume", "verify", "report", "flatness", "landscape", "methods", "doctor")
GROUPS = {
    "data": ("list", "prepare", "partition"),
    "recipes": ("list", "show", "run"),
    "flower": ("export", "run", "digest", "node", "rollback", "eject", "admit", "certs", "units"),
}


@pytest.mark.slow
def test_help_and_version_import_no_library() -> None:
    lines = ["--version", "--help", *COMMANDS, *GROUPS]
    lines += [f"{group} {command}" for group, members in GROUPS.items() for command in members]
    for command in commands(*(line if line.startswith("-") else f"{line} --help" for line in lines)):
        assert (command.code, command.err) == (0, ""), command
        assert not LIBRARIES & set(command.packages), command.line


def test_a_mistake_in_the_command_line_imports_no_library() -> None:
    for command in commands(
        "nonsense",
        "run --out",
        "resume",
        "report",
        "run --methd.rho 1",
        "run x.toml --client.learning_rate 1",
        "compare --method.rho 1",
    ):
        assert command.code == 2, command
        assert not LIBRARIES & set(command.packages), command.line


NUMBERS = {"torch", "numpy"}
SETTINGS = NUMBERS | {"pyarrow", "pydantic", "safetensors"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "needed",
    [  # what one process runs in this order, and all that it may have imported by then
        {"methods": NUMBERS, "methods FedSMOO": NUMBERS, "doctor": NUMBERS, "flatness --list": NUMBERS,
         "data list": NUMBERS | {"pyarrow", "PIL"}},
        {"run --keys": SETTINGS,
         "run --data.clients 5 --rounds 1 --flatness [] --executor sequential --out OUT":
         SETTINGS | {"sklearn", "scipy"}},
        {"recipes list fedvssam": SETTINGS | {"PIL", "scipy"}},
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
