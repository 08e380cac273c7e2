from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.data.partition import LabelDirichlet, Samples


def sizes(labels: np.ndarray, clients: int, seed: int, **fields: float) -> np.ndarray:
    samples = Samples(labels, int(labels.max()) + 1)
    parts = LabelDirichlet(**fields).split(samples, clients, np.random.default_rng(seed))
    return np.array([len(part) for part in parts])


def test_sizes_are_as_unequal_as_the_distribution_has_it() -> None:
    """Var = C n_c^2 m (1 - m) / (clients alpha + 1), m = 1 / clients.

    One draw by another program had sizes from 2 to 3194 with the median 308.
    """
    labels = np.repeat(np.arange(10), 5000)
    drawn = np.array([sizes(labels, 100, seed, alpha=0.1) for seed in range(40)])
    assert drawn.var(1).mean() == pytest.approx(10 * 5000**2 * 0.01 * 0.99 / 11, rel=0.15)
    for seen, ours in ((2, drawn.min(1)), (308, np.median(drawn, 1)), (3194, drawn.max(1))):
        assert ours.min() <= seen <= ours.max()


@given(
    least=st.integers(1, 10),
    clients=st.integers(1, 20),
    alpha=st.floats(1e-4, 10),
    seed=st.integers(0, 1000),
)
def test_no_client_has_fewer_than_least(least: int, clients: int, alpha: float, seed: int) -> None:
    assert sizes(np.repeat(np.arange(4), 50), clients, seed, alpha=alpha, least=least).min() >= least


@given(least=st.integers(1, 15), seed=st.integers(0, 100))
def test_small_clients_are_filled_from_the_largest_and_no_further(least: int, seed: int) -> None:
    """With one class and a tiny alpha one of four clients has all 60 samples."""
    found = sorted(sizes(np.zeros(60, int), 4, seed, alpha=1e-9, least=least))
    assert found == [least, least, least, 60 - 3 * least]


def test_the_largest_client_gives_only_while_it_is_the_largest() -> None:
    """With `least` at the mean everybody ends with the mean."""
    assert sizes(np.repeat(np.arange(6), 10), 4, 0, alpha=0.1, least=15).tolist() == [15] * 4


def test_what_moves_is_random() -> None:
    """The client that had all samples gives of all classes, as often of each."""
    labels = np.repeat(np.arange(5), 20)
    moved = np.zeros(5)
    for seed in range(300):
        parts = LabelDirichlet(alpha=1e-9, least=5).split(Samples(labels, 5), 2, np.random.default_rng(seed))
        if len(parts[0]) == 5 or len(parts[1]) == 5:
            moved += np.bincount(labels[min(parts, key=len)], minlength=5)
    assert moved.sum() >= 50
    assert moved.min() > 0


def test_too_many_samples_asked_for() -> None:
    with pytest.raises(
        InputError,
        match=r"^partition\.least = 21 with data\.clients = 10 needs 210 samples, but there are 200$",
    ):
        sizes(np.zeros(200, int), 10, 0, least=21)
    with pytest.raises(InputError, match=r"LabelDirichlet\.least must be a whole number in \[1, inf\), got 0"):
        LabelDirichlet(least=0)
