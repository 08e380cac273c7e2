from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedflat.data.partition import IID, Samples

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [40, 30, 20, 60, 50]))


def spread(stratified: bool, clients: int, seed: int) -> np.ndarray:
    """The largest difference between two clients in samples of a class, (classes,)."""
    parts = IID(stratified=stratified).split(Samples(LABELS, 5), clients, np.random.default_rng(seed))
    return np.ptp([np.bincount(LABELS[part], minlength=5) for part in parts], axis=0)


@given(clients=st.integers(2, 200), seed=st.integers(0, 1000))
def test_stratified_clients_differ_by_at_most_one_of_a_class(clients: int, seed: int) -> None:
    assert spread(True, clients, seed).max() <= 1


def test_plain_clients_differ_as_random_draws_do() -> None:
    """Counts of a class are hypergeometric: of 20 samples with 1 in 4 about 4, and a range of 3 to 4 deviations."""
    assert np.mean([spread(False, 10, seed) for seed in range(20)]) > 3


def test_pairs_of_samples_meet_as_often_as_chance_has_it() -> None:
    """Two samples share one of ten clients of 20 with probability 19 / 199, stratified or not in other classes."""
    for stratified, expected in ((False, 19 / 199), (True, 1 / 10)):
        met = 0
        for seed in range(300):
            parts = IID(stratified=stratified).split(Samples(LABELS, 5), 10, np.random.default_rng(seed))
            owner = np.empty(200, int)
            for client, part in enumerate(parts):
                owner[part] = client
            one, other = np.flatnonzero(LABELS == 0), np.flatnonzero(LABELS == 3)
            met += (owner[one][:, None] == owner[other]).mean()
        assert abs(met / 300 - expected) < 0.004
