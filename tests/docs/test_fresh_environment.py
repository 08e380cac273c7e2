"""What the README and the page of commands say works where nothing but the package and what it needs is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.effort import in_test_all
from support.readme import ROOT, commands, python_example


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment in which `pip install .` was called, without any extra."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    [torch] = re.findall(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    subprocess.run([*pip, torch], check=True)
    subprocess.run([*pip, ROOT], check=True)  # what pip takes by itself, not the tested versions
    return folder / "bin"


@in_test_all
def test_every_command_of_the_page_runs(environment: Path, tmp_path: Path) -> None:
    """In their order."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in commands():
        ended = subprocess.run(
            [environment / command[0], *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (command, ended.stderr)
        assert "Traceback" not in ended.stderr


@in_test_all
def test_the_python_example_runs(environment: Path, tmp_path: Path) -> None:
    program = [environment / "python", "-c", python_example()]
    ended = subprocess.run(program, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "FedSMOO is ahead of FedAvg" in ended.stdout


@in_test_all
def test_nothing_that_only_tests_need_is_installed(environment: Path) -> None:
    listed = subprocess.run(
        [environment / "pip", "list", "--format", "freeze"], capture_output=True, text=True, check=False
    )
    names = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert {"fedflat", "torch"} <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis", "sphinx", "flwr", "transformers", "pandas"}
