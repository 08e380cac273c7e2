from __future__ import annotations

from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.data.partition import Dirichlet, Samples
from fedflat.data.partition.scheme import draw_without_replacement

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [40, 30, 20, 60, 50]))


def written_out(labels: np.ndarray, classes: int, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Acar et al.'s scheme, one sample at a time, every prior made anew."""
    rng = np.random.default_rng(seed)
    priors = rng.dirichlet(np.full(classes, alpha), clients)
    pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(classes)]
    left = np.array([len(pool) for pool in pools])
    sizes = np.full(clients, len(labels) // clients) + (np.arange(clients) < len(labels) % clients)
    taken: list[list[int]] = [[] for _ in range(clients)]
    for client in rng.permutation(np.repeat(np.arange(clients), sizes)):
        prior = np.where(left > 0, priors[client], 0.0)
        prior = prior if prior.sum() > 0 else left.astype(float)
        label = np.searchsorted(prior.cumsum(), rng.random() * prior.sum(), side="right")
        taken[client].append(pools[label].pop())
        left[label] -= 1
    return [np.sort(mine) for mine in taken]


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=400),
    classes=st.integers(7, 30),
    clients=st.integers(1, 60),
    alpha=st.floats(0.05, 100),
    seed=st.integers(0, 10_000),
)
def test_splits_are_those_of_the_plain_scheme(
    labels: list[int], classes: int, clients: int, alpha: float, seed: int
) -> None:
    clients = min(clients, len(labels))
    samples = Samples(np.array(labels), classes)
    parts = Dirichlet(alpha=alpha).split(samples, clients, np.random.default_rng(seed))
    expected = written_out(samples.labels, classes, clients, alpha, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, expected, strict=True))


@pytest.mark.parametrize("classes", [10, 100])
def test_large_splits_are_those_of_the_plain_scheme(classes: int) -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(classes), 5000 // classes))
    parts = Dirichlet(alpha=0.1).split(Samples(labels, classes), 40, np.random.default_rng(2))
    assert all(np.array_equal(a, b) for a, b in zip(parts, written_out(labels, classes, 40, 0.1, 2), strict=True))


@pytest.mark.slow
def test_priors_are_not_summed_for_every_sample() -> None:
    """50,000 samples of 100 classes take a few hundredths of a second; summing each time is five times slower."""
    labels = np.repeat(np.arange(100), 500)
    times = []
    for split in (
        lambda: Dirichlet(alpha=0.1).split(Samples(labels, 100), 100, np.random.default_rng(0)),
        lambda: written_out(labels, 100, 100, 0.1, 0),
    ):
        start = process_time()
        split()
        times.append(process_time() - start)
    assert times[0] < times[1] / 2


def test_it_goes_from_one_class_to_all() -> None:
    """Classes per client rise with alpha."""
    held = []
    for alpha in (1e-3, 0.1, 1.0, 100.0):
        parts = Dirichlet(alpha=alpha).split(Samples(LABELS, 5), 10, np.random.default_rng(0))
        held.append(np.mean([len(set(LABELS[part])) for part in parts]))
    assert held == sorted(held)
    assert held[0] <= 2
    assert held[-1] > 4.5


def test_shares_have_the_variance_of_the_distribution() -> None:
    """While no class runs out: Var = m (1 - m) / (C alpha + 1) + that of the draws, m = 1 / C."""
    rng = np.random.default_rng(0)
    priors = rng.dirichlet(np.full(4, 0.5), 400)
    pools = list(np.arange(100_000).reshape(4, -1))
    parts = draw_without_replacement(pools, priors, rng.permutation(np.repeat(np.arange(400), 40)), rng)
    shares = np.array([np.bincount(part // 25_000, minlength=4) / 40 for part in parts])
    binomial = np.mean(priors * (1 - priors)) / 40
    assert shares.var() == pytest.approx(0.25 * 0.75 / (4 * 0.5 + 1) + binomial, rel=0.1)
    assert np.abs(shares - priors).max() < 6 * np.sqrt(0.25 / 40)


def test_a_prior_at_the_edge_of_the_number_range_is_followed() -> None:
    """5e-324 times a number above 0.5 is 5e-324 again, which must not lead beyond the last class."""
    pools, priors = [np.arange(10), np.arange(10, 20)], np.array([[5e-324, 0.0], [0.0, 5e-324]])
    parts = draw_without_replacement(pools, priors, np.repeat([0, 1], 10), np.random.default_rng(0))
    assert [part.tolist() for part in parts] == [list(range(10)), list(range(10, 20))]


def test_alpha_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"Dirichlet\.alpha must be a number in \(0, inf\), got 0"):
        Dirichlet(alpha=0)
