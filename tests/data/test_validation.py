from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedflat as ff
from fedflat.data.federated import FederatedData, Holdings
from fedflat.data.loading import hold_out
from fedflat.data.partition_statistics import partition_statistics
from support.files import refused


def federation(parts: list[np.ndarray], labels: np.ndarray | None = None) -> FederatedData:
    n = 1 + max(int(part.max()) for part in parts)
    y = torch.zeros(n, dtype=torch.int64) if labels is None else torch.from_numpy(labels)
    held = Holdings.of(parts)
    return FederatedData(torch.zeros(n, 1), y, held.members, held.offsets, classes=10)


def consecutive(sizes: list[int]) -> list[np.ndarray]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def split(data: FederatedData, share: float, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    held = hold_out(data, share, np.random.default_rng(seed))
    return Holdings(held.members, held.offsets).parts(), held.validation.parts()


@given(
    sizes=st.lists(st.integers(2, 40), min_size=1, max_size=8),
    share=st.floats(0.01, 0.9),
    seed=st.integers(0, 100),
)
def test_every_sample_of_a_client_is_on_one_side(sizes: list[int], share: float, seed: int) -> None:
    train, held_out = split(federation(consecutive(sizes)), share, seed)
    for whole, mine, apart in zip(consecutive(sizes), train, held_out, strict=True):
        assert sorted([*mine, *apart]) == whole.tolist()
        assert len(mine) >= 1
        assert len(apart) >= 1
        assert abs(len(apart) - share * len(whole)) <= 0.5 or len(apart) == 1 or len(mine) == 1


def test_a_sample_held_twice_goes_to_one_side() -> None:
    mine = np.array([3, 3, 3, 5, 6, 7, 7, 9])
    for seed in range(20):
        (train,), (held_out,) = split(federation([mine]), 0.4, seed)
        assert not set(train) & set(held_out)
        assert set(train) | set(held_out) == set(mine)
        assert train.tolist() == [i for i in mine if i not in held_out]
        assert len(held_out) == len(set(held_out)) == 2


def test_the_generator_decides() -> None:
    data = federation(consecutive([30, 20]))
    one, same, other = (np.concatenate(split(data, 0.3, seed)[1]) for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_every_sample_is_as_likely_so_that_labels_are_in_proportion() -> None:
    """Of 10 samples 3 are held out: over 2,000 draws each some 600 times, with standard deviation 20.5."""
    rng = np.random.default_rng(0)
    data = federation([np.arange(10)])
    times = sum(np.bincount(hold_out(data, 0.3, rng).validation.members, minlength=10) for _ in range(2000))
    assert times.sum() == 6000
    assert abs(times - 600).max() < 5 * 20.5


@pytest.mark.parametrize("sample", [np.array([4]), np.array([4, 4])])
def test_a_client_of_one_sample(sample: np.ndarray) -> None:
    with refused("data.validation = 0.1", "at client 1", "holds 1 sample(s)"):
        split(federation([np.arange(3), sample]), 0.1)


def test_loaded_by_name() -> None:
    whole, one, same, other = (
        ff.data.load("digits", clients=10, partition=ff.Dirichlet(alpha=0.5), seed=seed, **options)
        for seed, options in ((0, {}), (0, {"validation": 0.2}), (0, {"validation": 0.2}), (1, {"validation": 0.2}))
    )
    together = [
        np.sort(np.concatenate(pair))
        for pair in zip(Holdings(one.members, one.offsets).parts(), one.validation.parts(), strict=True)
    ]
    assert np.array_equal(np.concatenate(together), whole.members), "the split is that without validation"
    assert one.validation.sizes.tolist() == [round(0.2 * size) for size in whole.sizes]
    assert one.partition_hash() == same.partition_hash()
    assert len({data.partition_hash() for data in (whole, one, other)}) == 3


def test_the_facts_tell_validation_samples_from_unused_ones() -> None:
    facts = partition_statistics(ff.data.load("digits", clients=5, validation=0.2))
    assert (facts.unused, facts.duplicated) == (0, 0)
    assert 0.19 * 1347 < facts.validation < 0.21 * 1347
    assert f"{facts.validation} for validation" in "\n".join(facts.lines())
