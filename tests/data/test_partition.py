from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedflat as ff
from fedflat.data.facts import partition_facts
from fedflat.data.partition import Partition, all_partitions
from fedflat.data.partition.scheme import draw_by_prior

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(5), [40, 30, 20, 60, 50]))

schemes = st.one_of(
    st.just(ff.IID()),
    st.floats(1e-3, 1e3).map(lambda alpha: ff.Dirichlet(alpha=alpha)),
    st.integers(1, 5).map(lambda c: ff.Pathological(classes_per_client=c)),
)


def split(scheme: Partition, clients: int, seed: int) -> list[np.ndarray]:
    return scheme.split(LABELS, 5, clients, np.random.default_rng(seed))


@given(scheme=schemes, clients=st.integers(5, 20), seed=st.integers(0, 1000))
def test_every_sample_is_held_once_and_the_seed_decides(scheme: Partition, clients: int, seed: int) -> None:
    parts = split(scheme, clients, seed)
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert all(len(part) for part in parts)
    assert all(np.array_equal(a, b) for a, b in zip(parts, split(scheme, clients, seed), strict=True))


@given(scheme=st.sampled_from([ff.IID(), ff.Dirichlet(alpha=0.05)]), clients=st.integers(1, 200))
def test_iid_and_dirichlet_sizes_are_equal(scheme: Partition, clients: int) -> None:
    sizes = [len(part) for part in split(scheme, clients, 0)]
    assert max(sizes) - min(sizes) <= 1


@given(c=st.integers(1, 5), clients=st.integers(5, 20), seed=st.integers(0, 1000))
def test_pathological_clients_hold_exactly_so_many_classes(c: int, clients: int, seed: int) -> None:
    parts = split(ff.Pathological(classes_per_client=c), clients, seed)
    assert {len(set(LABELS[part])) for part in parts} == {c}
    holders = np.array([[label in LABELS[part] for part in parts] for label in range(5)]).sum(axis=1)
    assert holders.max() - holders.min() <= 1


def test_dirichlet_goes_from_one_class_to_all() -> None:
    """Classes per client rise with alpha; at large alpha the class shares are those of the whole set."""
    held = []
    for alpha in (1e-3, 0.1, 1.0, 100.0):
        parts = split(ff.Dirichlet(alpha=alpha), 10, 0)
        held.append(np.mean([len(set(LABELS[part])) for part in parts]))
    assert held == sorted(held)
    assert held[0] <= 2
    assert held[-1] > 4.5


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    """Without exhaustion the first draws follow the prior: Var = m (1 - m) / (C alpha + 1) with mean m = 1 / C."""
    labels = np.tile(np.arange(4), 25_000)
    rng = np.random.default_rng(0)
    priors = rng.dirichlet(np.full(4, 0.5), 400)

    few = [part[rng.permutation(len(part))[:40]] for part in draw_by_prior(labels[:40_000], priors, rng)]
    shares = np.array([np.bincount(labels[part], minlength=4) / 40 for part in few])
    binomial = np.mean(priors * (1 - priors)) / 40
    expected = 0.25 * 0.75 / (4 * 0.5 + 1) + binomial
    assert shares.var() == pytest.approx(expected, rel=0.15)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"partition\.classes_per_client = 6 is more than the 5 classes"):
        split(ff.Pathological(classes_per_client=6), 5, 0)
    with pytest.raises(ValueError, match=r"has 60 clients share the 40 samples of class 0; take fewer clients"):
        split(ff.Pathological(classes_per_client=3), 100, 0)
    with pytest.raises(ValueError, match=r"data\.clients = 201 is more than the 200 training samples"):
        split(ff.IID(), 201, 0)
    with pytest.raises(ValueError, match=r"Dirichlet\.alpha must be a number in \(0, inf\), got 0"):
        ff.Dirichlet(alpha=0)
    assert set(all_partitions()) >= {"iid", "dirichlet", "pathological"}


def test_facts_count_what_is_there() -> None:
    data = ff.FederatedData.from_clients([(np.zeros((3, 1)), [0, 1, 1]), (np.zeros((5, 1)), [2] * 5)])
    doubled = ff.FederatedData(data.x, data.y, np.array([0, 0, 1, 3]), np.array([0, 3, 4]), classes=3)
    facts = partition_facts(data)
    assert (facts.smallest, facts.median, facts.largest) == (3, 4, 5)
    assert (facts.fewest_classes, facts.mean_classes, facts.most_classes) == (1, 1.5, 2)
    assert (facts.unused, facts.duplicated) == (0, 0)
    assert (partition_facts(doubled).unused, partition_facts(doubled).duplicated) == (5, 1)
    assert len(facts.lines()) == 4
