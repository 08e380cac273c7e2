"""The first sentence says who is ahead, and how sure that is; the intervals are Student's, worked out by hand."""

from __future__ import annotations

import fedflat as ff
from fedflat.reports.tables import headline
from support.finished_runs import Fake


def runs(method: str, *accuracies: float) -> list[Fake]:
    return [Fake(method, seed, [0.1, value]) for seed, value in enumerate(accuracies)]


BASELINE = runs("FedAvg", 0.70, 0.70, 0.70)


def test_who_is_ahead_by_how_much_and_over_how_many_seeds() -> None:
    """Differences 9, 10, 11: mean 10, s = 1, half an interval 4.303 / sqrt(3) = 2.48."""
    comparison = ff.compare([*BASELINE, *runs("FedSAM", 0.79, 0.80, 0.81), *runs("FedGF", 0.75, 0.75, 0.75)])
    assert headline(comparison) == (
        "FedSAM is ahead of FedAvg by 10.00 points of test accuracy (95 % interval +7.52 to +12.48, 3 seeds); "
        "so is FedGF."
    )


def test_no_method_is_ahead_if_the_interval_has_zero_in_it() -> None:
    """Differences 0, 1, 5: mean 2, s = 2.65, half an interval 6.57."""
    found = headline(ff.compare([*BASELINE, *runs("FedSAM", 0.70, 0.71, 0.75)]))
    assert found == (
        "No method is reliably ahead of FedAvg; the highest difference is FedSAM's, +2.00 points of test accuracy "
        "(95 % interval -4.57 to +8.57, 3 seeds)."
    )


def test_the_baseline_can_be_ahead_of_all() -> None:
    found = headline(ff.compare([*BASELINE, *runs("FedSAM", 0.59, 0.60, 0.61)]))
    assert found.startswith(
        "FedAvg is ahead of all others; the closest, FedSAM, is 10.00 points of test accuracy behind"
    )


def test_one_seed_tells_nothing() -> None:
    found = headline(ff.compare([*BASELINE[:1], *runs("FedSAM", 0.9)]))
    assert found.startswith(
        "One seed cannot tell who is ahead of FedAvg: FedSAM's test accuracy is 20.00 points higher"
    )


def test_a_method_alone_is_compared_with_nothing() -> None:
    assert headline(ff.compare(BASELINE)).startswith("FedAvg has 70.00 ± 0.00 % test accuracy (3 seeds)")


def test_an_accuracy_chosen_on_the_test_set_is_called_so() -> None:
    found = headline(ff.compare([*BASELINE, *runs("FedSAM", 0.79, 0.80, 0.81)], protocol="best-test"))
    assert "chosen on the test set" in found


def test_many_are_counted_and_the_first_ones_named() -> None:
    others = [run for i in range(9) for run in runs(f"M{i}", *[0.80 + 0.01 * i] * 3)]
    assert headline(ff.compare([*BASELINE, *others])).endswith("; so are M7, M6, M5, M4 and 4 more.")
