"""What all partition schemes have in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data import partition as schemes
from fedflat.data.partition import Partition, Samples, all_partitions
from fedflat.data.partition_statistics import partition_statistics

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [40, 30, 20, 60, 50]))
DOMAIN = np.random.default_rng(1).permutation(np.repeat([0, 2], [90, 110]))
USER = np.random.default_rng(2).permutation(np.repeat(np.arange(25) * 7, 8))
SAMPLES = Samples(LABELS, 5, domain=DOMAIN, domains=("art", "cartoon", "photo"), user=USER)

alphas = st.floats(1e-3, 1e3)
few = st.integers(1, 5)
covering = st.one_of(
    st.builds(schemes.IID, stratified=st.booleans()),
    st.builds(schemes.Dirichlet, alpha=alphas),
    st.builds(schemes.BalancedDirichlet, alpha=st.just(0.0) | alphas),
    st.builds(schemes.LabelDirichlet, alpha=alphas, least=few),
    st.builds(schemes.Pathological, classes_per_client=few),
    st.builds(schemes.Shards, shards_per_client=few),
    st.just(schemes.Domain()),
)
refilling = st.one_of(
    st.builds(schemes.DirichletRefill, alpha=alphas), st.builds(schemes.PathologicalRefill, classes_per_client=few)
)
equal = st.one_of(
    st.builds(schemes.IID, stratified=st.booleans()),
    st.builds(schemes.Dirichlet, alpha=alphas),
    st.builds(schemes.BalancedDirichlet, alpha=st.just(0.0) | alphas),
    refilling,
)
any_scheme = st.one_of(covering, refilling, st.just(schemes.Natural()))
even = st.integers(3, 10).map(lambda half: 2 * half)  # a multiple of the two domains


def split(scheme: Partition, clients: int, seed: int) -> list[np.ndarray]:
    return scheme.split(SAMPLES, clients, np.random.default_rng(seed))


def same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return len(some) == len(others) and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@given(scheme=covering, clients=even, seed=st.integers(0, 1000))
def test_every_sample_is_held_once(scheme: Partition, clients: int, seed: int) -> None:
    parts = split(scheme, clients, seed)
    assert len(parts) == clients
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))


@given(scheme=equal, clients=st.integers(1, 200), seed=st.integers(0, 1000))
def test_sizes_are_equal(scheme: Partition, clients: int, seed: int) -> None:
    sizes = [len(part) for part in split(scheme, clients, seed)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(LABELS)


@given(scheme=any_scheme, clients=even, seed=st.integers(0, 1000))
def test_samples_are_known_and_ascend(scheme: Partition, clients: int, seed: int) -> None:
    for part in split(scheme, clients, seed):
        assert part.dtype == np.int64
        assert 0 <= part[0] <= part[-1] < len(LABELS)
        assert (np.diff(part) >= 0).all()


@given(scheme=any_scheme, other=any_scheme, clients=even, seed=st.integers(0, 1000))
def test_only_the_generator_decides(scheme: Partition, other: Partition, clients: int, seed: int) -> None:
    """Neither what was split before nor numpy's global state matters, and that state stays as it was."""
    np.random.seed(seed)
    before, first = np.random.get_state()[1].copy(), split(scheme, clients, seed)
    assert np.array_equal(np.random.get_state()[1], before)
    second = split(other, clients, seed)
    np.random.seed(seed + 1)
    assert same(split(other, clients, seed), second)
    assert same(split(scheme, clients, seed), first)


@pytest.mark.parametrize("name", sorted(set(all_partitions()) - {"natural"}))
def test_another_seed_is_another_split(name: str) -> None:
    scheme = all_partitions()[name]()
    assert not same(split(scheme, 10, 0), split(scheme, 10, 1))


def test_every_scheme_is_found_and_exported() -> None:
    names = "iid dirichlet balanced-dirichlet dirichlet-refill label-dirichlet pathological pathological-refill"
    assert set(all_partitions()) == {*names.split(), "shards", "domain", "natural"}
    for cls in all_partitions().values():
        assert getattr(schemes, cls.__name__) is cls


@pytest.mark.parametrize("name", ["iid", "dirichlet", "balanced-dirichlet", "dirichlet-refill", "pathological-refill"])
def test_more_clients_than_samples(name: str) -> None:
    with pytest.raises(InputError, match=r"^data\.clients = 201 is more than the 200 training samples$"):
        split(all_partitions()[name](), 201, 0)
    with pytest.raises(InputError, match=r"^data\.clients = 201 "):
        split(schemes.IID(stratified=True), 201, 0)
    with pytest.raises(InputError, match=r"^data\.clients = 201 "):
        split(schemes.BalancedDirichlet(alpha=0), 201, 0)


@given(alpha=st.sampled_from([5e-324, 1e-300, 1e300, 1.7e308]), clients=st.integers(2, 20))
def test_the_ends_of_the_range_of_alpha_work(alpha: float, clients: int) -> None:
    for cls in (schemes.Dirichlet, schemes.BalancedDirichlet, schemes.LabelDirichlet):
        parts = split(cls(alpha=alpha), clients, 0)
        assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert sum(map(len, split(schemes.DirichletRefill(alpha=alpha), clients, 0))) == len(LABELS)


@given(clients=st.integers(1, 30), seed=st.integers(0, 100))
def test_a_class_without_samples_is_no_obstacle(clients: int, seed: int) -> None:
    gap = Samples(np.repeat([0, 2], 30), 4)
    for scheme in (
        schemes.Dirichlet(alpha=0.01),
        schemes.BalancedDirichlet(alpha=0.01),
        schemes.LabelDirichlet(alpha=0.01),
        schemes.DirichletRefill(alpha=0.01),
        schemes.PathologicalRefill(classes_per_client=2),
    ):
        parts = scheme.split(gap, clients, np.random.default_rng(seed))
        assert sum(map(len, parts)) == 60


def test_samples_that_do_not_fit_together() -> None:
    with pytest.raises(InputError, match=r"samples: user has 2 entries for 3 labels"):
        Samples(np.zeros(3, int), 1, user=np.zeros(2, int))
    with pytest.raises(InputError, match=r"samples: domain has ids outside the 1 domains"):
        Samples(np.zeros(3, int), 1, domain=np.array([0, 1, 0]), domains=("photo",))


def test_facts_count_what_is_there() -> None:
    data = ff.FederatedData.from_clients([(np.zeros((3, 1)), [0, 1, 1]), (np.zeros((5, 1)), [2] * 5)])
    doubled = ff.FederatedData(data.x, data.y, np.array([0, 0, 1, 3]), np.array([0, 3, 4]), classes=3)
    facts = partition_statistics(data)
    assert (facts.smallest, facts.median, facts.largest) == (3, 4, 5)
    assert (facts.fewest_classes, facts.mean_classes, facts.most_classes) == (1, 1.5, 2)
    assert (facts.unused, facts.duplicated) == (0, 0)
    assert (partition_statistics(doubled).unused, partition_statistics(doubled).duplicated) == (5, 1)
    assert "8 (5 unused, 1 repeated)" in partition_statistics(doubled).lines()[1]
    assert len(facts.lines()) == 4
