"""Commands of pages and examples: carried out, or checked without training anything."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from typer.main import get_command

from fedflat.cli import main
from fedflat.cli.app import app
from fedflat.cli.flags import resolve, split_file
from fedflat.core.object_references import allow_code
from fedflat.experiments.spec import Experiment, RunSpec, StudySpec
from fedflat.experiments.tuning_spec import TuningSpec
from support.fresh_process import SOURCE

SPECS: dict[str, type[Experiment]] = {"run": RunSpec, "compare": StudySpec, "work": StudySpec, "tune": TuningSpec}


def commands_of(text: str) -> list[list[str]]:
    """The words of each line of a block; a backslash at the end of a line continues it."""
    return [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]


def carry_out(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = command
    if program == "python":
        monkeypatch.setenv("PYTHONPATH", str(SOURCE))
        subprocess.run([sys.executable, *words], check=True)
        return
    assert program == "fedflat"
    monkeypatch.setattr(sys, "argv", ["fedflat", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code, command


def accept(command: list[str], written: set[str]) -> None:
    """Parse a command and check its settings; what it would write is then among `written`."""
    program, *words = command
    if program == "python":
        assert Path(words[0]).is_file(), command
        return
    assert program == "fedflat"
    context = parsed(words)
    kind = SPECS.get(context.info_name or "")
    if kind is not None:
        file, flags = split_file(context.args)
        if file is not None and not file.is_file():  # one that an earlier command writes, there alone or with others
            assert any(str(file).startswith(one) for one in written), command
            file = None
        with allow_code():
            can_be_planned(resolve(kind, context.args if file else flags))
    if out := context.params.get("out"):
        written.add(str(Path(out).with_suffix("")))


def parsed(words: list[str]) -> click.Context:
    """The command that is called, with its options; wrong words raise an error of click's."""
    command: click.Command = get_command(app)
    name = "fedflat"
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    return command.make_context(name, list(words))


def can_be_planned(spec: Experiment) -> None:
    """Every run of a study, and every configuration of a search, has settings that go together."""
    if isinstance(spec, StudySpec):
        assert spec.runs()
    elif isinstance(spec, TuningSpec):
        assert all(spec.configurations_of(method) for method in spec.methods)
