from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from fedflat.cli import main
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)


@pytest.fixture
def fedflat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run a command line in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedflat", *shlex.split(line)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        return code, *capsys.readouterr()

    return run
