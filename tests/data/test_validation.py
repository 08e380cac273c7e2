from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedflat as ff
from fedflat.core.method import Method
from fedflat.data.federated import FederatedData
from fedflat.data.partition_statistics import partition_statistics
from fedflat.data.selection import Holdings, hold_out
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.local import Local
from support.files import refused


def federation(parts: list[np.ndarray], labels: np.ndarray | None = None) -> FederatedData:
    n = 1 + max(int(part.max()) for part in parts)
    y = torch.zeros(n, dtype=torch.int64) if labels is None else torch.from_numpy(labels)
    held = Holdings.of(parts)
    return FederatedData(torch.zeros(n, 1), y, held.members, held.offsets, classes=10)


def consecutive(sizes: list[int]) -> list[np.ndarray]:
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def split(data: FederatedData, share: float, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    train, validation = hold_out(Holdings(data.members, data.offsets), share, np.random.default_rng(seed))
    return train.parts(), validation.parts()


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
    held = Holdings.of([np.arange(10)])
    times = sum(np.bincount(hold_out(held, 0.3, rng)[1].members, minlength=10) for _ in range(2000))
    assert times.sum() == 6000
    assert abs(times - 600).max() < 5 * 20.5


@pytest.mark.parametrize("sample", [np.array([4]), np.array([4, 4])])
def test_a_client_of_one_sample_has_none_for_validation(sample: np.ndarray) -> None:
    (_, train), (one, none) = split(federation([np.arange(3), sample]), 0.1)
    assert (len(one), len(none)) == (1, 0)
    assert train.tolist() == sample.tolist()


def test_clients_of_one_sample_only() -> None:
    with refused("data.validation = 0.1", "use fewer clients, or train without validation"):
        split(federation(consecutive([1, 1, 1])), 0.1)


@pytest.mark.parametrize("method", [FedAvg(), Local()], ids=["one model", "a model for each client"])
def test_accuracy_is_that_of_the_clients_with_validation_samples(method: Method) -> None:
    """First, between and last there is a client without; the scores are the samples, so class 1 is predicted."""
    x = torch.tensor([[0.0, 2.0]] * 7)
    y = torch.tensor([0, 1, 1, 1, 0, 0, 1])
    data = FederatedData(x, y, np.array([0, 1, 3, 6]), np.array([0, 1, 2, 3, 4]), classes=2,
                         validation=Holdings(np.array([1, 2, 4, 3, 5]), np.array([0, 0, 3, 3, 5])))  # fmt: skip
    model = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    sim = ff.Simulation(model, data, method, client=ff.Client(lr=1e-6, steps=1, batch_size=1), rounds=1, seed=0)
    assert sim.run().summary["validation_accuracy_mean"] == pytest.approx((2 / 3 + 1 / 2) / 2)


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
