from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.__main__ import main

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
OURS = {path.stem for path in PEERS.glob("*.py")}
THEIRS = {"server", "utils"}  # of the stand-in for a checkout


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts can be imported, and leave none of their modules with common names behind."""
    monkeypatch.syspath_prepend(PEERS)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS | THEIRS]:
        del sys.modules[name]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Run `python -m benchmarks` in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *shlex.split(line)])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        return code, *capsys.readouterr()

    return run
