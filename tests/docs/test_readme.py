"""What the README says is what happens."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from fedflat.cli import main
from fedflat.methods import all_methods

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHORT = {"--seeds": "0", "--rounds": "2", "--methods": '["fedavg", "fedsam"]'}


@pytest.mark.slow
def test_the_python_example_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert "FedSMOO" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 10_000


def commands() -> list[str]:
    [block] = re.findall(r"## From the command line\n+```bash\n(.*?)```", README, re.DOTALL)
    return [line.split(" #")[0].strip() for line in block.replace("\\\n", " ").splitlines()]


def short_for(words: list[str]) -> list[str]:
    """Flags that make a command short, without those that it has."""
    return [word for flag, value in SHORT.items() if flag not in words for word in (flag, value)]


@pytest.mark.slow
def test_the_commands_run_as_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rounds, seeds and methods, which changes nothing but the time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert len(commands()) >= 7
    for command in commands():
        program, *words = shlex.split(re.sub(r"--rounds \d+", "--rounds 2", command))
        assert program == "fedflat"
        monkeypatch.setattr(sys, "argv", ["fedflat", *words, *(short_for(words) if words[0] == "compare" else [])])
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
