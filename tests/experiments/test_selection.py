"""Choosing settings by validation samples, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.run_file_readers import REQUIRED_COLUMNS
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.studies import begin_study, run_directory, stored_study
from fedflat.experiments.tuning import choices, chosen_study, validation_accuracy
from support.studies import run_spec

GRID = {"FedSAM.rho": [0.1, 0.2], "client.lr": [0.1, 0.5], "partition.alpha": [0.1, 1.0]}


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The summary of a run that was trained."""
    folder = tmp_path_factory.mktemp("run")
    runner.run(run_spec(rounds=1, flatness=[]), folder / "run")
    return json.loads((folder / "run/summary.json").read_text())


@pytest.fixture
def written(tmp_path: Path, summary: dict) -> Callable[..., tuple[StudySpec, list[StoredRun]]]:
    return partial(write_study, tmp_path, summary)


def write_study(tmp_path: Path, summary: dict, accuracy, **changes: object) -> tuple[StudySpec, list[StoredRun]]:
    """A study whose runs were not trained: their validation accuracies are those of `accuracy` of the run."""
    spec = StudySpec(**{"methods": ["fedavg", "fedsam"], "seeds": [0, 1], "last": 2, "grid": GRID} | changes)
    begin_study(spec, tmp_path)
    for run in spec.runs():
        folder = run_directory(run, tmp_path).path
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(run.to_toml())
        own = summary["settings"] | {"label": run.method.label, "seed": run.seed}
        (folder / "summary.json").write_text(json.dumps(summary | {"settings": own}))
        # What is not of the last two evaluations has no effect.
        write_metrics(folder, validation_accuracy=[None, 0.9, None, *accuracy(run)], test_accuracy=[0.99] * 5)
    return stored_study(tmp_path)


def write_metrics(folder: Path, **columns: list[float | None]) -> None:
    rounds = len(next(iter(columns.values())))
    others = {name: list(range(rounds)) for name in REQUIRED_COLUMNS}
    pq.write_table(pa.table(others | columns), folder / "metrics.parquet")


def test_the_best_mean_over_seeds_and_last_evaluations_is_chosen(written) -> None:
    """FedSAM is best with lr 0.5 where alpha is 0.1, with lr 0.1 elsewhere, and always with rho 0.2."""

    def accuracy(run) -> list[float]:
        good = (run.client.lr == 0.5) == (run.partition.alpha == 0.1)
        value = 0.4 + 0.2 * good + 0.1 * (getattr(run.method, "rho", 0) == 0.2) + 0.02 * run.seed
        return [value - 0.01, value + 0.01]

    _, runs = written(accuracy)
    found = {(choice.problem, choice.best.spec.method.name): choice for choice in choices(runs)}
    assert found.keys() == {(f"alpha={alpha}", name) for alpha in (0.1, 1.0) for name in ("FedAvg", "FedSAM")}
    for alpha, lr in ((0.1, 0.5), (1.0, 0.1)):
        best = found[f"alpha={alpha}", "FedSAM"].best
        assert (best.spec.client.lr, best.spec.method.rho) == (lr, 0.2)
        assert best.validation.mean == pytest.approx(0.71)
        assert best.validation.std == pytest.approx(0.02 / 2**0.5)
        assert len(found[f"alpha={alpha}", "FedSAM"].candidates) == 4
        assert found[f"alpha={alpha}", "FedAvg"].best.spec.client.lr == lr


def test_the_chosen_settings_are_a_study(written) -> None:
    """Each method has its own step size, and the rest is shared."""

    def accuracy(run) -> list[float]:
        return [0.5 + 0.1 * ((run.client.lr == 0.5) == (run.method.name == "FedAvg"))] * 2

    _, runs = written(accuracy, grid={"client.lr": [0.1, 0.5], "FedSAM.rho": [0.1, 0.2]})
    study = chosen_study(choices(runs))
    assert [(run.method.name, run.client.lr, run.seed) for run in study.runs()] == [
        ("FedAvg", 0.5, 0), ("FedSAM", 0.1, 0), ("FedAvg", 0.5, 1), ("FedSAM", 0.1, 1),
    ]  # fmt: skip
    assert study.client_of == {"FedAvg": {"lr": 0.5}, "FedSAM": {"lr": 0.1}}
    assert study.grid == {}
    assert study.methods[1].rho == 0.1, "of equal ones, the first"


def test_without_validation_samples_nothing_is_chosen(written) -> None:
    _, runs = written(lambda run: [None, None])
    folder = runs[0].directory.path
    write_metrics(folder, test_accuracy=[0.5])
    with pytest.raises(InputError, match=r"has no validation samples to choose by; set data\.validation"):
        validation_accuracy(StoredRun.open(folder), 2)


def test_settings_with_fewer_seeds_are_not_compared(written) -> None:
    _, runs = written(lambda run: [0.5, 0.5])
    with pytest.raises(InputError, match=r"FedAvg: some settings have seeds \(0, 1\) and others \(0,\)"):
        choices([run for run in runs if run.seed == 0 or run.directory.spec().client.lr == 0.1])
