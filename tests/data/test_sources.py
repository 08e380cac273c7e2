from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import fedflat as ff
from fedflat.data.sources import source_summary


def test_digits_are_scikit_learns() -> None:
    data = ff.data.load("digits", clients=50, partition=ff.Dirichlet(alpha=0.1), seed=0)
    assert (data.clients, data.classes, data.shape) == (50, 10, (1, 8, 8))
    assert (len(data.y), len(data.test[1])) == (1347, 450)
    assert 0 <= float(data.x.min()) < float(data.x.max()) == 1
    original = load_digits()
    ours = torch.cat([data.x, data.test[0]]).flatten(1).numpy() * 16
    assert sorted(map(tuple, ours.astype(int))) == sorted(map(tuple, original.data.astype(int)))
    assert np.array_equal(np.bincount(np.concatenate([data.y, data.test[1]])), np.bincount(original.target))


def test_the_test_set_does_not_depend_on_the_seed() -> None:
    one, other = (ff.data.load("digits", clients=5, seed=seed) for seed in (0, 1))
    assert torch.equal(one.test[0], other.test[0])
    assert not np.array_equal(one.members, other.members)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"data\.name = 'digit' is unknown; known are ag_news, cifar10, .*, digits, "):
        ff.data.load("digit", clients=5)
    with pytest.raises(ValueError, match=r"data\.clients must be a whole number of at least 1, got 0"):
        ff.data.load("digits", clients=0)
    with pytest.raises(
        ValueError, match=r"partition must be a scheme such as Dirichlet\(alpha=0\.1\), got 'dirichlet'"
    ):
        ff.data.load("digits", clients=5, partition="dirichlet")
    with pytest.raises(ValueError, match=r"data\.seed must be a whole number of at least 0, got -1"):
        ff.data.load("digits", clients=5, seed=-1)
    assert "8x8" in source_summary("digits")


def test_the_digits_lie_in_memory_that_torch_aligned() -> None:
    """Measures on all samples are then the same in every process."""
    data = ff.data.load("digits", clients=2)
    assert [x.data_ptr() % 64 for x in (data.x, data.test[0])] == [0, 0]
