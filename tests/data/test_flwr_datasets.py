"""Schemes that flwr-datasets has too; skipped where it is not installed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from fedflat.data.partition import IID, LabelDirichlet, Natural, Partition, Pathological, Samples, Shards

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of their imports
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
USER = np.random.default_rng(1).integers(0, 12, 1000)


def theirs(scheme: Any) -> list[np.ndarray]:
    """The sample indices of every client by a partitioner of flwr-datasets."""
    scheme.dataset = datasets.Dataset.from_dict({"label": LABELS, "user": USER, "index": np.arange(len(LABELS))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they use what pyarrow is about to drop
        scheme.load_partition(0)  # some know the number only then
        return [np.sort(scheme.load_partition(i)["index"]) for i in range(scheme.num_partitions)]


def ours(scheme: Partition, clients: int, seed: int = 0) -> list[np.ndarray]:
    return scheme.split(Samples(LABELS, 10, user=USER), clients, np.random.default_rng(seed))


def counts(parts: list[np.ndarray]) -> np.ndarray:
    """Samples per client and class, (clients, 10)."""
    return np.array([np.bincount(LABELS[part], minlength=10) for part in parts])


@pytest.mark.parametrize("clients", [1, 7, 30])
def test_iid_sizes(clients: int) -> None:
    expected = theirs(partitioner.IidPartitioner(num_partitions=clients))
    assert [len(part) for part in ours(IID(), clients)] == [len(part) for part in expected]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_label_dirichlet_counts(alpha: float, seed: int) -> None:
    """Both draw the shares first, from the same generator, so all counts are equal where no client was empty."""
    scheme = partitioner.DirichletPartitioner(
        num_partitions=20, partition_by="label", alpha=alpha, min_partition_size=0, self_balancing=False, seed=seed
    )
    expected = counts(theirs(scheme))
    assert expected.sum(1).min() > 0
    assert np.array_equal(counts(ours(LabelDirichlet(alpha=alpha), 20, seed)), expected)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_shards_counts(shards: int) -> None:
    """Both deal the shards first, from the same generator."""
    scheme = partitioner.ShardPartitioner(
        num_partitions=25, partition_by="label", num_shards_per_partition=shards, seed=3
    )
    expected = counts(theirs(scheme))
    assert np.array_equal(counts(ours(Shards(shards_per_client=shards), 25, seed=3)), expected)


@pytest.mark.parametrize(("clients", "classes"), [(20, 1), (30, 2), (50, 3)])
def test_pathological_counts(clients: int, classes: int) -> None:
    """Their classes go round in a circle: with a multiple of ten clients each is held as often, as ours are."""
    scheme = partitioner.PathologicalPartitioner(
        num_partitions=clients,
        partition_by="label",
        num_classes_per_partition=classes,
        class_assignment_mode="deterministic",
    )
    expected, found = counts(theirs(scheme)), counts(ours(Pathological(classes_per_client=classes), clients))
    assert (found > 0).sum(1).tolist() == (expected > 0).sum(1).tolist()
    assert np.array_equal(np.sort(found, axis=0), np.sort(expected, axis=0))


def test_natural_clients() -> None:
    expected = theirs(partitioner.NaturalIdPartitioner(partition_by="user"))
    found = ours(Natural(), len(expected))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
