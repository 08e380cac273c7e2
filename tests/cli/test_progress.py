from __future__ import annotations

import io

import pytest

from fedflat.cli import progress
from fedflat.cli.console import Console
from fedflat.cli.progress import Bar, Lines, state, watcher
from fedflat.engine.simulation import Round
from fedflat.experiments import studies
from support.studies import study_spec

pytestmark = pytest.mark.slow


def test_a_terminal_gets_a_bar_with_the_time_left(tmp_path) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    spec = study_spec(seeds=[0], methods=["fedavg", "fedgf"], flatness=[])
    with watcher(console, spec.runs()) as watching:
        assert isinstance(watching, Bar)
        studies.carry_out_study(spec, tmp_path, watching)
        task = watching._progress.tasks[0]
        assert (task.completed, task.total) == (12, 12)
        assert "c " in task.description, "FedGF's c is shown"
    text = console.file.getvalue()
    assert "FedGF-seed0" in text
    assert "left" in text


def test_a_pipe_gets_plain_lines(tmp_path) -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    with watcher(console, study_spec().runs()) as watching:
        assert isinstance(watching, Lines)
        studies.carry_out_study(study_spec(), tmp_path, watching)
    lines = console.file.getvalue().splitlines()
    assert sum("test accuracy" in line and " in " in line for line in lines) == 4
    assert any(line.endswith("s left, not counting measures of flatness") and "train loss " in line for line in lines)
    assert "\x1b" not in console.file.getvalue()


def test_a_pipe_hears_of_long_measures_only(monkeypatch) -> None:
    console, spec, now = Console(file=io.StringIO(), width=80), study_spec().runs()[0], [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    lines = Lines(console, [spec])
    for done in range(5):
        lines.measuring(spec, "LPF", done, 5)
        now[0] += progress.PATIENCE / 10
    assert console.file.getvalue() == ""
    now[0] += progress.PATIENCE
    lines.measuring(spec, "LPF", 5, 9)
    assert console.file.getvalue() == f"{spec.label}  measuring LPF, 5 of about 9\n"


def test_variants_have_names_of_their_own_and_results_their_protocol(tmp_path) -> None:
    console = Console(file=io.StringIO(), width=80)
    methods = [{"name": "fedsam", "rho": 0.1}, {"name": "fedsam", "rho": 0.2}]
    spec = study_spec(methods=methods, seeds=[0], flatness=[])
    for protocol, words in (("last", "mean of the last 6 evaluations"), ("final", "of the final model")):
        with watcher(console, spec.runs(), protocol) as watching:
            runs = studies.carry_out_study(spec, tmp_path, watching)
        for run, rho in zip(runs, (0.1, 0.2), strict=True):
            shown = 100 * run.summary["test_accuracy" if protocol == "last" else "test_accuracy_last"]
            line = f"FedSAM(rho={rho})-seed0 test accuracy {shown:.2f} % ({words})  in "
            assert line in console.file.getvalue()


def test_small_numbers_of_probes_are_told_and_those_of_layers_are_not() -> None:
    metrics = {"c": 0.25, "a": 0.0, "aggregation_error_mean": 3.2e-16, "aggregation_error/0": 0.5, "sharpness": 0.005}
    assert state(Round(0, metrics)) == "c 0.25  a 0.00  aggregation_error_mean 3e-16  sharpness 0.01"
    assert state(Round(0, {"c": 1.0, "clipped": 3.0, "refused": 0.0})) == "c 1.00  clipped 3  refused 0"
