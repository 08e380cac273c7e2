from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.data.partition import BalancedDirichlet, Samples


def class_counts(alpha: float, classes: int, clients: int, seed: int, n: int = 50_000) -> np.ndarray:
    """Samples per client and class, (clients, classes), of a split of n samples, as many of each class."""
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), n // classes))
    parts = BalancedDirichlet(alpha=alpha).split(Samples(labels, classes), clients, np.random.default_rng(seed))
    return np.array([np.bincount(labels[part], minlength=classes) for part in parts])


@pytest.mark.parametrize(
    ("classes", "alpha", "published", "tolerance"),
    [(10, 0, 1.0, 0), (10, 0.005, 1.3, 0.1), (10, 10, 9.9, 0.1),
     (100, 0, 1.0, 0), (100, 0.005, 5.1, 0.5), (100, 10, 98.8, 0.5)],
)  # fmt: skip
def test_classes_per_client_are_those_of_the_published_files(
    classes: int, alpha: float, published: float, tolerance: float
) -> None:
    """The CIFAR-10 and CIFAR-100 split files of Hsu et al. (2020), named alpha * classes."""
    held = [(class_counts(alpha, classes, 100, seed) > 0).sum(1).mean() for seed in range(10)]
    assert abs(np.mean(held) - published) <= tolerance


def test_counts_are_rounded_shares_and_not_draws() -> None:
    """The first client's counts vary by size^2 m (1 - m) / (C alpha + 1) and rounding; draws would add size m (1 - m).

    User 7 of the published file for CIFAR-100 with alpha = 10 per class has a variance of 2.46 over classes.
    """
    variances = [class_counts(10, 100, 100, seed)[0].var() for seed in range(20)]
    assert np.mean(variances) == pytest.approx(500**2 * 0.01 * 0.99 / (100 * 10 + 1) + 1 / 12, rel=0.1)
    assert min(variances) < 2.46 < max(variances)


def test_the_last_clients_take_what_is_left() -> None:
    held = (class_counts(10, 100, 100, 0) > 0).sum(1)
    assert held[:50].min() >= 99
    assert held[-1] < 60


def test_alpha_zero_gives_every_class_to_equally_many_clients() -> None:
    counts = class_counts(0, 10, 100, 0)
    assert (counts > 0).sum(0).tolist() == [10] * 10
    assert set(counts[counts > 0]) == {500}


@given(st.lists(st.integers(0, 6), min_size=30, max_size=200), st.integers(1, 30), st.integers(0, 100))
def test_alpha_zero_cuts_each_class_at_most_twice_inside_clients(labels: list[int], clients: int, seed: int) -> None:
    """Holdings are clients and cuts between classes: at most clients + classes - 1."""
    y = np.array(labels)
    parts = BalancedDirichlet(alpha=0).split(Samples(y, 7), clients, np.random.default_rng(seed))
    assert sum(len(set(y[part])) for part in parts) <= clients + len(set(labels)) - 1


def test_a_large_alpha_is_nearly_stratified() -> None:
    counts = class_counts(1e6, 10, 10, 0, n=1000)
    assert np.abs(counts - 10).max() <= 1


def test_alpha_must_not_be_negative() -> None:
    with pytest.raises(InputError, match=r"BalancedDirichlet\.alpha must be a number in \[0, inf\), got -1"):
        BalancedDirichlet(alpha=-1)
