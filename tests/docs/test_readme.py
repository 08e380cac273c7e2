"""What the README says is what happens."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fedflat.cli import main
from fedflat.methods import all_methods
from support.readme import README, ROOT, commands, python_example


@pytest.mark.slow
def test_the_python_example_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(python_example(), "README.md", "exec"), {})
    assert "FedSMOO" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_commands_run_as_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rounds, seeds and methods, which changes nothing but the time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert len(commands()) >= 7
    for command in commands():
        assert command[0] == "fedflat"
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code, command


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)) <= targets


def test_the_table_of_methods_has_every_method_and_the_same_cells_in_each_row() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    assert len(rows) == len(all_methods())
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
