"""The trace against dense Hessians and known spectra, and the interval against the truth, over and over."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.metrics.flatness import Finding, Measured, Subject
from fedflat.metrics.flatness.measures import trace
from fedflat.metrics.flatness.measures.trace import Trace
from support.effort import chosen, in_turns
from support.federation import federation, tanh_network
from support.networks import convolutions, dense_hessian, landscape
from support.quadratic_clients import Bowls
from support.spectra import Known, KnownHessian, like_a_network, rotated


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Landscapes are known spectra."""
    monkeypatch.setattr(trace, "Hessian", KnownHessian)


def measured(one: Trace, subject: Any) -> tuple[Measured, int]:
    """The trace, and the number of products."""
    found = one.measure(subject, lambda done, total: None)
    assert list(found.values) == ["trace"]
    return found.values["trace"], products(found)


def products(found: Finding) -> int:
    """As the protocol states them."""
    return int(re.search(r"(\d+) Hessian products", found.protocol).group(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("make", [tanh_network, convolutions])
def test_a_sketch_of_the_whole_space_is_the_dense_hessians_trace(make, dtype: torch.dtype) -> None:
    """A network of few parameters, asked for more than probes can give, is spanned whole."""
    data = federation()
    found = ff.flatness(make().to(dtype), data, [Trace(sketch=100, relative_error=1e-4)])
    expected = np.trace(dense_hessian(make(), data.x, data.y))
    assert found["trace"].value == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-12)
    assert found["trace"].error <= 1e-4 * expected
    assert found["trace"].kind == "interval"


@pytest.mark.slow
@pytest.mark.parametrize(("make", "estimator"), in_turns([tanh_network, convolutions], ["hutchinson", "hutch++"]))
def test_probes_come_as_close_as_they_say(make, estimator: str) -> None:
    data = federation()
    found = ff.flatness(make(), data, [Trace(estimator=estimator, relative_error=0.05, most=5000)])["trace"]
    assert found.error <= 0.05 * found.value
    assert abs(found.value - np.trace(dense_hessian(make(), data.x, data.y))) <= found.error


@pytest.mark.usefixtures("known")
def test_signs_see_the_trace_of_a_diagonal_hessian_exactly() -> None:
    """z' diag(a) z = sum a for every z, so the fewest probes are enough and nothing is left to doubt."""
    values = np.random.default_rng(0).normal(size=50)
    found, products = measured(Trace(least=4), Known(np.diag(values)[None]))
    assert found.value == pytest.approx(values.sum(), rel=1e-13)
    assert found.error <= 1e-13
    assert products == 4


def test_groups_of_samples_count_by_their_size() -> None:
    """Five samples in groups of three and two, with diagonal Hessians, whose trace every probe sees exactly."""
    random = np.random.default_rng(0)
    diagonals = random.uniform(0.5, 2.0, (2, 4))
    clients = Bowls(np.stack([np.diag(one) for one in diagonals]), random.normal(size=(2, 4)), (2, 3), np.zeros(4))
    found, _ = measured(Trace(estimator="hutchinson", groups=2, least=4), clients.subject)
    assert found.value == pytest.approx((2 * diagonals[0].sum() + 3 * diagonals[1].sum()) / 5, rel=1e-9)


COVERED = [
    # estimator, groups of samples, of signs, relative error
    ("hutchinson", 1, 1, 0.08),
    ("hutch++", 1, 1, 0.05),
    ("hutch++", 1, 1, 0.01),
    ("hutchinson", 10, 10, 0.06),
    ("hutch++", 10, 10, 0.04),
    ("hutch++", 10, 4, 0.03),
]


@pytest.mark.slow
@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(("estimator", "groups", "signs", "relative_error"), chosen([COVERED[2], COVERED[5]], COVERED))
def test_the_interval_covers_the_truth_as_often_as_it_says(
    estimator: str, groups: int, signs: int, relative_error: float
) -> None:
    """In 90 to 99 % of 200 repetitions; 95 % is meant, stopping when it looks narrow takes a little of it."""
    subject = like_a_network(groups=groups)
    expected, covered = np.trace(subject.H), 0
    for seed in range(200):
        one = Trace(estimator=estimator, groups=signs, relative_error=relative_error, seed=seed)
        found, _ = measured(one, subject)
        assert found.error <= relative_error * abs(found.value)
        covered += abs(found.value - expected) <= found.error
    assert 180 <= covered <= 198


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_a_sketch_takes_the_outliers_off_the_probes() -> None:
    plain, sketched = (
        np.mean([measured(Trace(estimator=name, seed=seed), like_a_network())[1] for seed in range(5)])
        for name in ("hutchinson", "hutch++")
    )
    assert sketched < plain / 3


@pytest.mark.usefixtures("known")
def test_no_sketch_where_the_first_probes_are_enough() -> None:
    subject = like_a_network()
    plain, products = measured(Trace(estimator="hutchinson", relative_error=0.6), subject)
    assert measured(Trace(relative_error=0.6), subject) == (plain, products)
    assert products == 10


@pytest.mark.usefixtures("known")
def test_groups_with_signs_of_their_own_need_fewer_probes() -> None:
    """20 groups that are alike: the variance falls to a twentieth, so does the number of probes."""
    subject = like_a_network(groups=20, noise=0)
    common, own = (
        np.mean([measured(Trace(estimator="hutchinson", groups=n, seed=seed), subject)[1] for seed in range(5)])
        for n in (1, 20)
    )
    assert 12 < common / own < 30


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("block", [1, 2, 100])
def test_it_does_not_matter_how_many_vectors_are_multiplied_at_once(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, one = like_a_network(groups=5), Trace(relative_error=0.02)
    expected, products = measured(one, subject)
    monkeypatch.setattr(KnownHessian, "block", block)
    monkeypatch.setattr(KnownHessian.__init__, "__defaults__", (block,))
    found, again = measured(one, subject)
    assert again == products > 26
    assert (found.value, found.error) == pytest.approx((expected.value, expected.error), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("make", [tanh_network, convolutions])
def test_memory_changes_nothing(make) -> None:
    F, w = landscape(make())
    one = Trace(groups=3, relative_error=0.3, sketch=4)
    expected, products = measured(one, Subject(F.objective, w, F.data))
    found, again = measured(one, Subject(F.objective, w, F.data, memory=1))
    assert again == products
    assert (found.value, found.error) == pytest.approx((expected.value, expected.error), rel=1e-12)


@pytest.mark.usefixtures("known")
def test_the_bound_on_probes_holds_and_the_error_is_stated() -> None:
    subject = Known(rotated(np.array([1.0, -1.0] * 20))[None])  # no relative error can be reached: the trace is 0
    found, products = measured(Trace(estimator="hutchinson", most=37), subject)
    assert products == 37
    assert 0 < abs(found.value) < 2 * found.error
    assert measured(Trace(estimator="hutchinson", most=5), subject)[1] == 5
    assert measured(Trace(most=37, sketch=3), subject)[1] == 10 + 3 + 37


def test_a_dead_network_has_trace_zero() -> None:
    found = ff.flatness(nn.Sequential(tanh_network(), nn.Hardshrink(1e9)), federation(), [Trace(least=3)])
    assert (found["trace"].value, found["trace"].error, products(found.findings[0])) == (0, 0, 3)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("estimator", ["hutch++", "hutchinson"])
def test_progress_rises_and_ends_where_it_said(estimator: str) -> None:
    reported: list[tuple[int, int]] = []
    one = Trace(estimator=estimator, groups=4)
    found: Finding = one.measure(like_a_network(groups=6), lambda *now: reported.append(now))
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert all(done <= total for done, total in reported)
    assert reported[-1] == (products(found),) * 2
    assert len(reported) > 8


def test_curvlinops_finds_the_same() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    network, data = tanh_network(), federation()
    theirs = curvlinops.HessianLinearOperator(
        network, nn.CrossEntropyLoss(), list(network.parameters()), [(data.x, data.y)]
    )
    expected = float((theirs @ torch.eye(theirs.shape[0], dtype=torch.float64)).trace())
    found = ff.flatness(network, data, [Trace(sketch=100, relative_error=1e-9)])["trace"]
    assert found.value == pytest.approx(expected, rel=1e-7)
