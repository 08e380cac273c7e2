"""Which runs make a row, and with which one it is compared: a sweep over alpha, rho and lr is one table."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest

import fedflat as ff
from fedflat.rounds.participation import Share
from fedflat.rounds.settings import table_of
from support.finished_runs import Fake, split_data


def swept(method: str, alpha: float, lr: float, seed: int, accuracy: float, **hyper: float) -> Fake:
    """A run as the engine leaves it: partitions depend on alpha and seed."""
    return Fake(
        method, seed, [0.1, accuracy], hyper, partition_hash=f"{alpha} {seed}", client=ff.Client(lr=lr),
        data=split_data("digits", 50, ff.Dirichlet(alpha=alpha)),
    )  # fmt: skip


def accuracy(alpha: float, lr: float, seed: int, rho: float = 0.0) -> float:
    """Each setting adds another amount, so that every wrong pairing shows in a difference."""
    return 0.3 + 0.2 * alpha + lr + 0.01 * seed + rho


def test_a_sweep_over_alpha_rho_and_lr_is_paired_within_each_alpha_and_lr() -> None:
    grid = list(product((0.1, 1.0), (0.05, 0.1), (0, 1, 2)))
    runs = [swept("FedAvg", *one, accuracy(*one)) for one in grid]
    runs += [swept("FedSAM", *one, accuracy(*one, rho), rho=rho) for rho in (0.01, 0.02) for one in grid]
    comparison = ff.compare(runs)
    assert len(comparison.rows) == 4 + 8
    assert comparison.rows[0].label == "FedAvg(alpha=0.1, lr=0.05)"
    assert comparison.rows[-1].label == "FedSAM(rho=0.02, alpha=1.0, lr=0.1)"
    assert comparison.baseline == "FedAvg"
    for row in comparison.rows:
        settings = row.label.partition("alpha")[2]
        assert row.baseline == f"FedAvg(alpha{settings}"
        if row.is_baseline:
            assert row.difference is None
        else:
            assert row.difference.mean == pytest.approx(float(row.label[11:15]))
    assert comparison.notes == []


def test_the_nearest_baseline_serves_if_none_has_the_same_local_training() -> None:
    runs = [swept("FedAvg", 0.1, lr, 0, 0.5) for lr in (0.1, 0.2)]
    runs += [swept("FedSAM", 0.1, lr, 0, 0.6, rho=0.1) for lr in (0.2, 0.4)]
    rows = {row.label: row.baseline for row in ff.compare(runs).rows}
    assert rows["FedSAM(lr=0.2)"] == "FedAvg(lr=0.2)"
    assert rows["FedSAM(lr=0.4)"] == "FedAvg(lr=0.1)"


def test_a_row_on_a_partition_of_its_own_is_compared_with_nothing_and_that_is_said() -> None:
    runs = [swept("FedAvg", 0.1, 0.1, 0, 0.5), swept("FedSAM", 1.0, 0.1, 0, 0.9)]
    comparison = ff.compare(runs)
    assert [row.difference for row in comparison.rows] == [None, None]
    assert comparison.rows[1].baseline is None
    assert comparison.notes == ["Not paired with FedAvg(alpha=0.1), whose partition, data differ: FedSAM(alpha=1.0)."]


def test_one_row_can_be_the_baseline_of_all() -> None:
    runs = [swept("FedAvg", 0.1, lr, 0, 0.5) for lr in (0.1, 0.2)]
    comparison = ff.compare(runs, baseline="FedAvg(lr=0.2)")
    assert {row.baseline for row in comparison.rows} == {"FedAvg(lr=0.2)"}
    assert comparison.baseline == "FedAvg(lr=0.2)"


def test_a_baseline_is_a_label_or_a_method_in_any_spelling() -> None:
    runs = [Fake("FedAvg", 0, [0.5], {"alpha": alpha}) for alpha in (10, 1.0)]
    assert ff.compare(runs, baseline="FedAvg(alpha=1.0)").baseline == "FedAvg(alpha=1.0)"
    assert ff.compare(runs, baseline="fed-avg").baseline == "FedAvg(alpha=10.0)"


def test_rounds_and_participation_make_rows_of_their_own() -> None:
    shares = {4: table_of(Share(0.1)), 5: table_of(Share(0.2))}
    runs = [Fake("FedAvg", 0, [0.5] * n, more={"participation": share}) for n, share in shares.items()]
    assert [row.label for row in ff.compare(runs).rows] == [
        "FedAvg(participation=0.1, rounds=4)",
        "FedAvg(participation=0.2, rounds=5)",
    ]


def test_partitions_made_by_hand_are_told_apart_by_their_hashes() -> None:
    rows = ff.compare([Fake("FedAvg", 0, [0.5], partition_hash=name) for name in ("one", "two")]).rows
    assert [row.label for row in rows] == ["FedAvg(partition_hash=one)", "FedAvg(partition_hash=two)"]


def test_only_a_true_duplicate_is_refused_and_named() -> None:
    run, again = Fake("FedAvg", 0, [0.5]), Fake("FedAvg", 0, [0.6], more={"executor": "y"})
    with pytest.raises(ValueError, match=r"two runs of FedAvg have the same settings and seed 0: numbers 0 and 1 of"):
        ff.compare([run, Fake("FedAvg", 0, [0.5])])
    with pytest.raises(ValueError, match=r"seed 0, and differ only in executor: numbers 1 and 2 of the list"):
        ff.compare([Fake("FedAvg", 1, [0.5]), run, again])
    for place, one in (("runs/a", run), ("runs/b", again)):
        one.directory = SimpleNamespace(path=place)
    with pytest.raises(ValueError, match=r"runs/a and runs/b; leave one of them out$"):
        ff.compare([run, again])


def test_a_mean_over_much_of_the_training_is_pointed_out() -> None:
    class Averaged(Fake):
        summary = property(lambda self: super().summary | {"test_accuracy_evaluations": 4})

    [note] = ff.compare([Averaged("FedAvg", 0, [0.5] * 6)]).notes
    assert note.startswith("The score is the mean of the last 4 of 6 evaluations")
    assert ff.compare([Averaged("FedAvg", 0, [0.5] * 20)]).notes == []
    assert ff.compare([Averaged("FedAvg", 0, [0.5] * 6)], protocol="final").notes == []


def test_bf16_is_pointed_out() -> None:
    [note] = ff.compare([Fake("FedAvg", 0, [0.5], more={"precision": "bf16"})]).notes
    assert "bfloat16" in note
