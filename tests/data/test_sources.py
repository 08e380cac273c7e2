from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fedflat as ff
from fedflat.data.sources import source


def test_digits_are_scikit_learns_and_a_stratified_quarter_is_for_test() -> None:
    data = ff.data.load("digits", clients=50, partition=ff.Dirichlet(alpha=0.1), seed=0)
    assert (data.clients, data.classes, data.shape) == (50, 10, (1, 8, 8))
    original = load_digits()
    split = train_test_split(original.images, original.target, test_size=0.25, random_state=0, stratify=original.target)
    for ours, theirs in zip((data.x, data.test[0], data.y, data.test[1]), split, strict=True):
        values = ours[:, 0].double() * 16 if ours.is_floating_point() else ours
        assert np.array_equal(values.numpy(), theirs)


@pytest.mark.slow
def test_digits_are_read_without_importing_scikit_learn() -> None:
    """Which takes a new process as long as importing torch."""
    code = (
        "import sys; from fedflat.data.sources import TABLE; TABLE['digits'].read(); sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=600, check=False).returncode == 0


def test_the_test_set_does_not_depend_on_the_seed() -> None:
    one, other = (ff.data.load("digits", clients=5, seed=seed) for seed in (0, 1))
    assert torch.equal(one.test[0], other.test[0])
    assert not np.array_equal(one.members, other.members)


def test_mistakes() -> None:
    with pytest.raises(
        ValueError, match=r"data\.name = 'digit' is unknown; known are ag_news, .*, cifar10, .*, digits, "
    ):
        ff.data.load("digit", clients=5)
    with pytest.raises(ValueError, match=r"data\.clients must be a whole number of at least 1, got 0"):
        ff.data.load("digits", clients=0)
    with pytest.raises(
        ValueError, match=r"partition must be a scheme such as Dirichlet\(alpha=0\.1\), got 'dirichlet'"
    ):
        ff.data.load("digits", clients=5, partition="dirichlet")
    with pytest.raises(ValueError, match=r"data\.seed must be a whole number of at least 0, got -1"):
        ff.data.load("digits", clients=5, seed=-1)
    assert "8x8" in source("digits").summary


def test_the_digits_lie_in_memory_that_torch_aligned() -> None:
    """Measures on all samples are then the same in every process."""
    data = ff.data.load("digits", clients=2)
    assert [x.data_ptr() % 64 for x in (data.x, data.test[0])] == [0, 0]
