from __future__ import annotations

import pytest

import fedflat as ff
from fedflat.experiments.recipe import Published
from fedflat.reports.columns import caption, columns, target_columns
from support.finished_runs import Fake

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
    assert comparison.targets == pytest.approx((0.75,))
    assert cells(comparison, "rounds to 75.0 %") == ["3 (1/2)", "3 (2/2)"]
    assert all(column.title != "λ max" for column in columns(comparison)), "a column without a number is left out"
    assert cells(comparison, "MB sent") == ["4", "4"]
    assert cells(comparison, "clients, training") == ["70.0 ± 10.0 (50–90)"] * 2
    assert "FedSAM" in str(comparison)


def test_few_megabytes_until_a_target_are_not_none() -> None:
    """2 of 3 rounds, 0.04 MB each way; as many as ten are whole numbers."""
    for size, shown in ((2e4, "0.08"), (2e6, "8"), (3e6, "12")):
        sent = {name: [size, 2 * size, 3 * size] for name in ("bytes_down", "bytes_up")}
        comparison = ff.compare([Fake("FedAvg", 0, [0.2, 0.6, 0.7], columns=sent)], targets=[0.5])
        [column] = [column for column in target_columns(comparison, 0) if column.title == "MB sent"]
        assert column.cell(comparison.rows[0]) == shown


def test_pairing_is_by_seed() -> None:
    assert ff.compare(RUNS).rows[1].difference == ff.compare(RUNS[::-1], baseline="FedAvg").rows[0].difference


def test_variants_of_one_method_are_told_apart_by_what_differs() -> None:
    runs = [Fake("FedSAM", 0, [0.5], {"rho": rho, "server_lr": 1.0}) for rho in (0.1, 0.2)]
    assert [row.label for row in ff.compare(runs).rows] == ["FedSAM(rho=0.1)", "FedSAM(rho=0.2)"]


def test_the_first_method_is_the_baseline_if_fedavg_is_absent() -> None:
    assert ff.compare(RUNS[2:]).baseline == "FedSAM"


def test_plain_numbers() -> None:
    rows = ff.compare(RUNS, targets=[0.55, 0.95]).table().to_pylist()
    assert [row["method"] for row in rows] == ["FedAvg", "FedSAM"]
    assert rows[1]["difference"] == pytest.approx(0.15)
    assert rows[0]["rounds_to_0.55"] == 2.5
    assert (rows[0]["gradients_to_0.55"], rows[0]["bytes_to_0.55"], rows[0]["vectors_to_0.55"]) == (2.5, 5, 10)
    assert (rows[0]["rounds_to_0.95"], rows[0]["seeds_at_0.95"]) == (None, 0)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="compare needs a list of at least one finished run"):
        ff.compare([])
    with pytest.raises(ValueError, match=r"compare takes finished runs, of .*, got 1$"):
        ff.compare([1])
    with pytest.raises(ValueError, match=r"compare takes finished runs, .*, got 'runs/one'"):
        ff.compare([*RUNS, "runs/one"])
    with pytest.raises(ValueError, match="baseline = 'FedProx' has no run; there are runs of FedAvg, FedSAM"):
        ff.compare(RUNS, baseline="FedProx")
    with pytest.raises(ValueError, match=r"targets: 95 is no test accuracy in \(0, 1\)"):
        ff.compare(RUNS, targets=[95])
    with pytest.raises(ValueError, match=r"protocol = 'best' is unknown; known are last, final, best-validation"):
        ff.compare(RUNS, protocol="best")
    with pytest.raises(ValueError, match=r"protocol = 'best-validation' needs validation samples"):
        ff.compare(RUNS, protocol="best-validation")


def test_the_protocol_decides_which_accuracy_counts_and_the_caption_says_so() -> None:
    falling = [Fake("FedAvg", 0, [0.2, 0.9, 0.7])]
    assert cells(ff.compare(falling, protocol="final"), "test accuracy") == ["70.00"]
    best = ff.compare(falling, protocol="best-test")
    assert cells(best, "test accuracy") == ["90.00"]
    assert "BEST ON THE TEST SET" in caption(best)
    assert "of the final model" in caption(ff.compare(falling, protocol="final"))


def test_a_papers_numbers_stand_beside_ours() -> None:
    printed = Published(quantity="test accuracy %", where="Table 1", values={"FedSAM": [88.5, 0.2]})
    comparison = ff.compare(RUNS, published=[printed])
    assert cells(comparison, "paper: test accuracy %") == ["–", "88.5 ± 0.2"]
    assert cells(comparison, "ours − paper") == ["–", "+1.50"]


def test_a_number_of_a_variant_stands_beside_the_runs_with_these_settings_whatever_they_are_called() -> None:
    runs = [Fake("FedGF", 0, [0.5], {"c": c, "rho": rho}) for c, rho in ((0.0, 0.1), (1.0, 0.1), (None, 0.02))]
    values = {"FedGF(c=0)": 68.11, "FedGF(c=1)": 78.05, "FedGF": 78.41}
    printed = Published(quantity="test accuracy %", where="Table 5", values=values)
    assert cells(ff.compare(runs, published=[printed]), "paper: test accuracy %") == ["68.11", "78.05", "78.41"]


def test_own_client_settings_of_a_method_are_told() -> None:
    slower = Fake("FedDyn", 0, [0.5] * 3, client=ff.Client(lr_decay=0.9995))
    notes = ff.compare([RUNS[0], slower]).notes
    assert notes == ["Local training has settings of their own for some methods: see FedAvg, FedDyn below."]


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


def test_accuracy_over_clients_on_both_kinds_of_their_samples() -> None:
    data = ff.data.load("digits", clients=5, validation=0.2, seed=0)
    run = ff.Simulation(model="mlp", data=data, method=ff.methods.FedAvg(), rounds=1, seed=0).run()
    shown = str(ff.compare([run], protocol="best-validation"))
    assert "clients, training" in shown
    assert "clients, validation" in shown
    assert "clients, validation" not in str(ff.compare(RUNS))
