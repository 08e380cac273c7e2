from __future__ import annotations

import pytest

from benchmarks.measurement import Measurement, Measurements
from benchmarks.parts import parts
from benchmarks.record_store import PART as STORE
from benchmarks.targets import BLAZEFL, FEDLAB, FLOWER, FLSIM, FLUKE, PFL, TARGETS, Plain, Ratio, Target, VectorShare
from fedflat.methods import all_methods


def every_contestant() -> list[Measurement]:
    """A second for everybody of the benchmark, and a hundred for every other framework."""
    ours = [Measurement(part.name, one.name, [1.0] if one.processor else [], [1.0]) for part in parts(True).values()
            for one in part.implementations]  # fmt: skip
    store = [Measurement(STORE, "read and write", [1.0], [1.0]), Measurement(STORE, "peak memory", bytes=[1.0])]
    all_works = ("W1", "W2", "W3", "W5")
    methods = {FLSIM: ("FedAvg", "Scaffold", "FedSAM", "FedSMOO"), BLAZEFL: ("FedAvg", "FedAvg 2 threads")}
    peers = [
        Measurement(work, f"{peer} {method}", [100.0], [100.0], alone=True)
        for peer, workloads in {PFL: all_works, FEDLAB: ("W1", "W2", "W3"), FLOWER: all_works,
                                FLSIM: ("W1", "W1 full"), BLAZEFL: all_works, FLUKE: all_works}.items()
        for work in workloads
        for method in methods.get(peer, ("FedAvg",))
    ]  # fmt: skip
    return [*ours, *store, *peers]


def test_every_row_of_the_table_is_there_and_what_it_needs_is_measured() -> None:
    assert {target.row for target in TARGETS} == set(range(1, 24))
    measured = Measurements(every_contestant())
    for target in TARGETS:
        assert target.quantity.of(measured) is not None, f"row {target.row}: {target.quantity}"


def test_nothing_is_made_up_where_nothing_was_measured() -> None:
    assert all(target.quantity.of(Measurements([])) is None for target in TARGETS)


def test_the_goal_is_never_easier_than_the_target() -> None:
    for target in TARGETS:
        assert target.stretch is None or target.met(target.stretch, target.target)


@pytest.mark.parametrize(
    ("at_least", "value", "met"),
    [(True, 2.1, True), (True, 1.9, False), (False, 1.9, True), (False, 2.1, False), (True, 2, True), (False, 2, True)],
)
def test_targets_are_least_or_most_values(at_least: bool, value: float, met: bool) -> None:
    quantity = Ratio(("W", "A"), ("W", "B"))
    assert Target(0, "W", quantity, 2.0, at_least=at_least).met(value, 2.0) == met


def test_another_framework_that_takes_twice_as_long_is_beaten_by_two() -> None:
    row = next(target for target in TARGETS if str(target.quantity) == f"{FLSIM} FedSAM / FedSAM")
    measured = Measurements([Measurement("W1", f"{FLSIM} FedSAM", [8.0], [8.0], alone=True),
                             Measurement("W1a", "FedSAM", [4.0], [4.0])])  # fmt: skip
    assert row.quantity.of(measured).median == 2.0


def test_plain_quantities_are_in_their_units() -> None:
    measured = Measurements([Measurement("store", "read", cpu=[0.02, 0.03, 0.05])])
    found = Plain("store", "read", "ms", 1e-3).of(measured)
    assert (found.median, found.low, found.high) == pytest.approx((30, 20, 50))


def test_vector_work_is_the_most_of_any_method_over_two_gradients() -> None:
    every = [("backprop", 0.1), ("vectors FedAvg", 0.001), ("vectors FedSMOO", 0.006), ("vectors FedSAM", 0.002)]
    measured = Measurements([Measurement("W1 vectors", name, [x]) for name, x in every])
    quantity = VectorShare("W1 vectors")
    assert quantity.of(measured).median == pytest.approx(3.0)
    assert {method: share.median for method, share in quantity.shares(measured).items()} == pytest.approx(
        {"FedAvg": 0.5, "FedSMOO": 3.0, "FedSAM": 1.0}
    )


def test_vector_work_is_measured_for_every_method() -> None:
    measured = Measurements(every_contestant())
    assert set(VectorShare("W1 vectors").shares(measured)) == set(all_methods())
