"""No number is lost behind another one of its name, and none on a part of the samples passes for one on all."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.core.progress import Steps, no_progress
from fedflat.experiments.measuring import build_measures, measure_run, run_directories
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.studies import carry_out_study as carry_out
from fedflat.methods import FedAvg
from fedflat.metrics.flatness import Finding, Measure, Measured, Subject, all_measures
from fedflat.reports.columns import columns
from fedflat.reports.flatness import flatness_columns
from support.quadratic_clients import Bowl, bowls
from support.studies import study_spec

SETTINGS = {"estimator": ["hutch++", "hutchinson"], "layers": [False, True]}


class Named(Measure):
    """A measure of one's own."""

    value: str = "drift"

    @property
    def suffix(self) -> str:
        return ""

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        return self.finding(subject, {self.value: Measured(1.0)}, samples="")


def of_one_name() -> list[tuple[Measure, Measure]]:
    """For every measure two that differ only in what narrows the error, in each such setting."""
    found = []
    for cls in all_measures().values():
        for name in cls.precision:
            one, other = SETTINGS.get(name, [2, 3])
            found.append((cls(**{name: one}), cls(**{name: other})))
    return found


@pytest.mark.parametrize("pair", of_one_name(), ids=str)
def test_two_measures_with_one_name_are_refused(pair: tuple[Measure, Measure]) -> None:
    b = bowls()
    with pytest.raises(ValueError, match="are one quantity and have one name; leave one of them out"):
        ff.flatness(Bowl(b.w), b.data, pair)
    with pytest.raises(ValueError, match="are one quantity and have one name"):
        b.simulation(FedAvg(), probes=pair)


@pytest.mark.parametrize("wrong", [{"name": "lpf"}, None, 3, Measured(1.0)], ids=str)
def test_what_is_no_measure_is_refused_in_one_line(wrong: object) -> None:
    b = bowls()
    with pytest.raises(ValueError, match=r"measures must be names, or measures such as Sharpness\(rho=0.1\), got "):
        ff.flatness(Bowl(b.w), b.data, [wrong])


def test_the_same_measure_twice_is_one() -> None:
    b = bowls()
    assert list(ff.flatness(Bowl(b.w), b.data, ["sharpness", "sharpness"])) == ["sharpness"]


def test_settings_that_define_make_columns_of_their_own() -> None:
    b = bowls()
    both = [{"name": "sharpness"}, {"name": "sharpness", "rho": 0.1}, {"name": "sharpness", "rho": 0.1, "steps": 2}]
    found = ff.flatness(Bowl(b.w), b.data, build_measures(both))
    assert list(found) == ["sharpness", "sharpness(rho=0.1)", "sharpness(rho=0.1,steps=2)"]


def test_another_measure_or_metric_of_one_name_is_refused() -> None:
    b = bowls()
    with pytest.raises(ValueError, match="Sharpness and Named both measure 'sharpness'"):
        ff.flatness(Bowl(b.w), b.data, ["sharpness", Named(value="sharpness")])
    with pytest.raises(ValueError, match="a probe measures 'drift', which is a metric of every round"):
        b.simulation(FedAvg(), probes=[Named()], probe_every=1).round()


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds, with a probe on 16 of their samples."""
    folder = tmp_path_factory.mktemp("study")
    probe = {"name": "tracking-error", "batches": 2, "batch_size": 8}
    spec = study_spec(rounds=1, methods=["fedavg"], flatness=[], probes=[probe])
    carry_out(spec, folder)
    return folder


@pytest.mark.slow
def test_tables_say_which_part_of_the_samples_was_used(carried_out: Path) -> None:
    """In the metrics of a run, its findings, and comparisons, of one seed and of two."""
    directories = run_directories([carried_out])
    runs = [StoredRun.open(one.path) for one in directories]
    total = int(runs[0].counts.sum())
    assert runs[0].metrics["tracking_error_samples"].to_pylist() == [16.0]
    for one in directories:
        measure_run(one, build_measures(["sharpness", "eigenvalues"]), 100, None, no_progress)
    part = len(range(0, total, -(-total // 100)))
    assert part < total
    for some in (runs[:1], runs):
        fresh = [StoredRun.open(one.directory.path) for one in some]
        comparison = ff.compare(fresh)
        assert {column.title: column.cell(comparison.rows[0]) for column in columns(comparison)}["sharpness"].endswith(
            f" ({part} of {total:,})"
        )
        assert all(f"({part} of {total:,})" in text for text in flatness_cells(comparison))
        (row,) = csv.DictReader(str(comparison.to_csv()).splitlines())
        assert (row["sharpness_samples"], row["lambda_max_samples"]) == (str(part), str(part))


def flatness_cells(comparison: ff.Comparison) -> list[str]:
    return [column.cell(comparison.rows[0]) for column in flatness_columns(comparison)[1:]]


@pytest.mark.slow
def test_the_command_refuses_two_measures_of_one_name(carried_out: Path) -> None:
    two = build_measures(["trace", {"name": "trace", "seed": 1}])
    (first, *_) = run_directories([carried_out])
    before = first.findings()
    with pytest.raises(ValueError, match="are one quantity and have one name"):
        measure_run(first, two, 100, None, no_progress)
    assert first.findings() == before
    with pytest.raises(ValueError, match="are one quantity and have one name"):
        study_spec(flatness=["trace", {"name": "trace", "seed": 1}]).runs()[0].build()
