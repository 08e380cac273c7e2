from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from matplotlib.figure import Figure

from fedflat.cli import main
from support.effort import chosen

BLANK = {"svg": '<svg xmlns="http://www.w3.org/2000/svg"></svg>', "pdf": "%PDF-1.4\n%%EOF\n"}


@pytest.fixture(autouse=True)
def _blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are not drawn: most of a report's time. `tests/reports` and `make test-all` draw them."""

    def blank(_: Figure, buffer: IO[Any], format: str, **__: object) -> None:
        text = BLANK[format]
        buffer.write(text if isinstance(buffer, io.TextIOBase) else text.encode())

    monkeypatch.setattr(Figure, "savefig", chosen(blank, Figure.savefig))


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
