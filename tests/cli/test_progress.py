from __future__ import annotations

import io

import pytest

from fedflat.cli import progress
from fedflat.cli.console import Console
from fedflat.cli.progress import Bar, Lines, watcher
from fedflat.experiments import studies
from support.studies import study_spec

pytestmark = pytest.mark.slow


def test_a_terminal_gets_a_bar_with_the_time_left(tmp_path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    spec = study_spec(seeds=[0], methods=["fedavg", "fedgf"], flatness=[])
    with watcher(console, 12) as watching:
        assert isinstance(watching, Bar)
        studies.study(spec, tmp_path, watching)
        task = watching._progress.tasks[0]
        assert (task.completed, task.total) == (12, 12)
        assert "c " in task.description, "FedGF's c is shown"
    text = console.file.getvalue()
    assert "FedGF-seed0" in text
    assert "left" in text


def test_a_pipe_gets_plain_lines(tmp_path) -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with watcher(console, 24) as watching:
        assert isinstance(watching, Lines)
        studies.study(study_spec(), tmp_path, watching)
    lines = console.file.getvalue().splitlines()
    assert sum("test accuracy" in line and " in " in line for line in lines) == 4
    assert any(line.endswith("s left") for line in lines)
    assert "\x1b" not in console.file.getvalue()


def test_a_pipe_hears_of_long_measures_only(monkeypatch) -> None:
    console, spec, now = Console(file=io.StringIO(), width=80), study_spec().runs()[0], [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    lines = Lines(console, 24)
    for done in range(5):
        lines.measuring(spec, "LPF", done, 5)
        now[0] += progress.PATIENCE / 10
    assert console.file.getvalue() == ""
    now[0] += progress.PATIENCE
    lines.measuring(spec, "LPF", 5, 9)
    assert console.file.getvalue() == f"{spec.label}  measuring LPF, 5 of about 9\n"
