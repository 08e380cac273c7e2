from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.data.partition import Pathological, Samples, Shards

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [40, 30, 20, 60, 50]))
SAMPLES = Samples(LABELS, 5)


@given(c=st.integers(1, 5), clients=st.integers(5, 20), seed=st.integers(0, 1000))
def test_pathological_clients_hold_exactly_so_many_classes(c: int, clients: int, seed: int) -> None:
    parts = Pathological(classes_per_client=c).split(SAMPLES, clients, np.random.default_rng(seed))
    assert {len(set(LABELS[part])) for part in parts} == {c}
    holders = np.array([[label in LABELS[part] for part in parts] for label in range(5)]).sum(axis=1)
    assert holders.max() - holders.min() <= 1


def test_pathological_mistakes() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"^partition\.classes_per_client = 6 is more than the 5 classes$"):
        Pathological(classes_per_client=6).split(SAMPLES, 5, rng)
    with pytest.raises(InputError, match=r"has 60 clients share the 40 samples of class 0; take fewer clients"):
        Pathological(classes_per_client=3).split(SAMPLES, 100, rng)


@given(shards=st.integers(1, 5), clients=st.integers(1, 40), seed=st.integers(0, 1000))
def test_shards_are_runs_of_the_sorted_samples(shards: int, clients: int, seed: int) -> None:
    """Sizes differ by at most one sample a shard, and holdings are shards and cuts between classes."""
    parts = Shards(shards_per_client=shards).split(SAMPLES, clients, np.random.default_rng(seed))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= shards
    assert sum(len(set(LABELS[part])) for part in parts) <= clients * shards + 4


def test_two_shards_of_a_client_have_one_class_as_often_as_chance_has_it() -> None:
    """McMahan et al.'s MNIST setting on equal classes: 200 shards, 20 a class, so 19 of 199 partners are of it."""
    labels = np.repeat(np.arange(10), 200)
    held = []
    for seed in range(100):
        parts = Shards().split(Samples(labels, 10), 100, np.random.default_rng(seed))
        assert {len(part) for part in parts} == {20}
        held += [len(set(labels[part])) for part in parts]
    assert set(held) == {1, 2}
    assert np.mean(np.array(held) == 1) == pytest.approx(19 / 199, rel=0.1)


def test_more_shards_than_samples() -> None:
    with pytest.raises(
        InputError, match=r"^partition\.shards_per_client = 3 with data\.clients = 67 makes 201 shards of 200 samples$"
    ):
        Shards(shards_per_client=3).split(SAMPLES, 67, np.random.default_rng(0))
