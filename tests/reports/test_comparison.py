from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fedflat as ff
from fedflat.reports.columns import columns
from fedflat.reports.comparison import PAIRED_BY


@dataclass
class Fake:
    """A finished run with given accuracies."""

    method: str
    seed: int
    accuracies: list[float]
    hyper: dict[str, Any] = field(default_factory=dict)
    partition_hash: str = "same"
    counts: np.ndarray = field(default_factory=lambda: np.eye(3, dtype=int))

    @property
    def metrics(self) -> pa.Table:
        return pa.table({"t": range(len(self.accuracies)), "test_accuracy": self.accuracies})

    @property
    def summary(self) -> dict[str, float]:
        names = ("client_accuracy_std", "client_accuracy_worst", "gradients", "bytes_down", "bytes_up")
        return {"rounds": len(self.accuracies), "test_accuracy": self.accuracies[-1]} | dict.fromkeys(names, 2e6)

    @property
    def settings(self) -> dict[str, Any]:
        shared = dict.fromkeys((*PAIRED_BY, "executor"), "x")
        return shared | {"partition_hash": self.partition_hash, "hyper": self.hyper}


RUNS = [
    Fake("FedAvg", 0, [0.2, 0.6, 0.7]),
    Fake("FedAvg", 1, [0.2, 0.5, 0.8]),
    Fake("FedSAM", 1, [0.3, 0.6, 0.9]),
    Fake("FedSAM", 0, [0.3, 0.7, 0.9]),
]


def cells(comparison: ff.reports.Comparison, title: str) -> list[str]:
    column = next(c for c in columns(comparison) if c.title.replace("\N{NO-BREAK SPACE}", " ").startswith(title))
    return [column.cell(row) for row in comparison.rows]


def test_table_of_two_methods_and_two_seeds() -> None:
    comparison = ff.compare(RUNS)
    assert cells(comparison, "method") == ["FedAvg", "FedSAM"]
    assert cells(comparison, "test accuracy") == ["75.00 ± 7.07", "90.00 ± 0.00"]
    assert cells(comparison, "Δ to FedAvg")[0] == "–"
    assert cells(comparison, "Δ to FedAvg")[1].startswith("+15.00 [")
    assert comparison.target == pytest.approx(0.75)
    assert cells(comparison, "rounds to 75.0 %") == ["3 (1/2)", "3 (2/2)"]
    assert cells(comparison, "λ max") == ["–", "–"]
    assert cells(comparison, "MB sent") == ["4", "4"]
    assert "FedSAM" in str(comparison)


def test_pairing_is_by_seed() -> None:
    assert ff.compare(RUNS).rows[1].difference == ff.compare(RUNS[::-1], baseline="FedAvg").rows[0].difference


def test_variants_of_one_method_are_told_apart_by_what_differs() -> None:
    runs = [Fake("FedSAM", 0, [0.5], {"rho": rho, "server_lr": 1.0}) for rho in (0.1, 0.2)]
    assert [row.label for row in ff.compare(runs).rows] == ["FedSAM(rho=0.1)", "FedSAM(rho=0.2)"]


def test_the_first_method_is_the_baseline_if_fedavg_is_absent() -> None:
    assert ff.compare(RUNS[2:]).baseline == "FedSAM"


def test_runs_that_are_not_paired_are_called_so() -> None:
    other = Fake("FedSAM", 0, [0.5, 0.5, 0.5], partition_hash="other")
    notes = ff.compare([RUNS[0], other]).notes
    assert notes == ["Not paired: with seed 0, partition_hash differs between runs (other; same)."]
    assert ff.compare(RUNS).notes == []


def test_plain_numbers() -> None:
    rows = ff.compare(RUNS, target=0.55).table().to_pylist()
    assert [row["method"] for row in rows] == ["FedAvg", "FedSAM"]
    assert rows[1]["difference"] == pytest.approx(0.15)
    assert rows[0]["rounds_to_target"] == 2.5


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="compare needs a list of at least one finished run"):
        ff.compare([])
    with pytest.raises(ValueError, match="baseline = 'FedProx' has no run; there are runs of FedAvg, FedSAM"):
        ff.compare(RUNS, baseline="FedProx")
    with pytest.raises(ValueError, match=r"target = 95 is not an accuracy in \(0, 1\)"):
        ff.compare(RUNS, target=95)


def test_a_run_is_not_counted_twice() -> None:
    with pytest.raises(ValueError, match=r"two runs of FedAvg have seed 0$"):
        ff.compare([RUNS[0], RUNS[0]])
    with pytest.raises(ValueError, match="two runs of FedAvg have seed 0; they differ in partition_hash"):
        ff.compare([RUNS[0], Fake("FedAvg", 0, [0.1], partition_hash="other")])


def test_other_seeds_are_not_paired() -> None:
    assert ff.compare([RUNS[0], RUNS[2]]).notes == ["Not paired: FedSAM has seeds [1], FedAvg has [0]."]


def test_a_baseline_among_variants_is_the_first_of_its_method() -> None:
    runs = [RUNS[3], *(Fake("FedAvg", 0, [0.5] * 3, {"server_lr": lr}) for lr in (1.0, 0.5))]
    assert ff.compare(runs).baseline == "FedAvg(server_lr=1.0)"
    assert ff.compare(runs, baseline="fedsam").baseline == "FedSAM"


def test_columns_that_only_some_runs_have_are_kept() -> None:
    class Flat(Fake):
        summary = property(lambda self: super().summary | {"lambda_max": 2.0})

    assert ff.compare([RUNS[0], Flat("FedSAM", 0, [0.5] * 3)]).table()["lambda_max"].to_pylist() == [None, 2.0]
