from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.data.partition import DirichletRefill, Partition, PathologicalRefill, Samples
from fedflat.data.partition.scheme import draw_with_refill

N = 50_000
refilling = st.one_of(
    st.floats(1e-3, 1e2).map(lambda alpha: DirichletRefill(alpha=alpha)),
    st.integers(1, 4).map(lambda c: PathologicalRefill(classes_per_client=c)),
)


def realised(scheme: Partition, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Of 100 clients and N samples, as many of each class: class counts (clients, classes), uses of samples (N,)."""
    labels = np.repeat(np.arange(classes), N // classes)
    parts = scheme.split(Samples(labels, classes), 100, np.random.default_rng(seed))
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    return counts, np.bincount(np.concatenate(parts), minlength=N)


@pytest.mark.parametrize(("classes", "unused"), [(10, 0.085), (100, 0.126)])
def test_so_many_samples_are_never_used(classes: int, unused: float) -> None:
    """Measured by others on a statement of FedSMOO's released code, alpha 0.1; as many places repeat a sample."""
    uses = [realised(DirichletRefill(alpha=0.1), classes, seed)[1] for seed in range(30)]
    assert np.mean([(use == 0).mean() for use in uses]) == pytest.approx(unused, rel=0.1)
    assert all((use == 0).sum() == (use - 1).clip(0).sum() for use in uses)


def test_class_totals_have_the_variance_of_the_priors() -> None:
    """Var = clients (m p (1 - p) + m (m - 1) Var q), m = 500 draws, p = 0.1, Var q = p (1 - p) / (C alpha + 1).

    The released code's split has a standard deviation of 829 over classes: one draw, among ours.
    """
    variances = [realised(DirichletRefill(alpha=0.1), 10, seed)[0].sum(0).var() for seed in range(60)]
    assert np.mean(variances) == pytest.approx(100 * (500 * 0.09 + 500 * 499 * 0.09 / 2), rel=0.2)
    assert min(variances) < 829**2 < max(variances)


@given(
    labels=st.lists(st.integers(0, 3), min_size=20, max_size=200).filter(lambda labels: len(set(labels)) == 4),
    scheme=refilling,
    clients=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_a_class_is_used_up_before_its_samples_are_used_again(
    labels: list[int], scheme: Partition, clients: int, seed: int
) -> None:
    parts = scheme.split(Samples(np.array(labels), 4), clients, np.random.default_rng(seed))
    uses = np.bincount(np.concatenate(parts), minlength=len(labels))
    assert uses.sum() == len(labels)
    for label in range(4):
        assert np.ptp(uses[np.array(labels) == label]) <= 1


def test_a_client_may_hold_a_sample_twice() -> None:
    labels = np.repeat([0, 1], [2, 98])
    parts = PathologicalRefill(classes_per_client=1).split(Samples(labels, 2), 10, np.random.default_rng(0))
    rare = [part for part in parts if (labels[part] == 0).all()]
    assert rare
    assert all(len(part) == 10 and set(part) == {0, 1} for part in rare)


def test_pathological_clients_hold_so_many_classes_in_equal_shares() -> None:
    counts, _ = realised(PathologicalRefill(classes_per_client=4), 10, 0)
    assert (counts > 0).sum(1).tolist() == [4] * 100
    held = counts[counts > 0]
    assert held.var() == pytest.approx(500 * 0.25 * 0.75, rel=0.25)


def test_pathological_clients_choose_independently() -> None:
    """The clients that hold a class are binomial: Var = 100 * 0.3 * 0.7. Dealt evenly it would be below 1."""
    holders = [(realised(PathologicalRefill(classes_per_client=3), 10, s)[0] > 0).sum(0) for s in range(40)]
    assert np.mean([count.var() for count in holders]) == pytest.approx(21, rel=0.25)


def test_draws_follow_the_priors_also_at_the_edge_of_the_number_range() -> None:
    """A prior without weight on a class that has samples is replaced by the sizes of the classes."""
    pools = [np.arange(10), np.arange(10, 40), np.arange(0)]
    priors = np.array([[5e-324, 0.0, 0.0], [0.0, 0.3, 0.7], [0.0, 0.0, 1.0]])
    parts = draw_with_refill(pools, priors, np.repeat([0, 1, 2], 400), np.random.default_rng(0))
    assert (parts[0] < 10).all()
    assert (parts[1] >= 10).all()
    assert (parts[2] < 10).mean() == pytest.approx(0.25, abs=0.1)


def test_more_classes_than_there_are() -> None:
    labels = Samples(np.array([0, 0, 2, 2]), 3)
    with pytest.raises(InputError, match=r"^partition\.classes_per_client = 3 is more than the 2 classes$"):
        PathologicalRefill(classes_per_client=3).split(labels, 2, np.random.default_rng(0))
