from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, spearmanr

from fedflat.rounds.randomness import Purpose, generator, seed_torch, words


def bits(w: np.ndarray) -> np.ndarray:
    return np.unpackbits(np.ascontiguousarray(w).view(np.uint8))


def test_words_are_a_function_of_the_counters_alone() -> None:
    table = words(7, Purpose.BATCHES, 3, np.arange(5)[:, None], np.arange(8))
    assert table.shape == (5, 8)
    assert table[2, 4] == words(7, Purpose.BATCHES, 3, 2, 4)
    assert len(np.unique(table)) == 40


def test_words_are_uniform() -> None:
    counts = np.histogram(words(0, Purpose.BATCHES, np.arange(100_000)).astype(float), bins=256, range=(0, 2.0**64))[0]
    assert chisquare(counts).pvalue > 1e-4


def test_neighbouring_counters_share_nothing() -> None:
    """Flipping any counter by one flips half of the bits."""
    n = np.arange(2000)
    base = words(1, Purpose.BATCHES, n, 5, 9)
    others = [
        words(2, Purpose.BATCHES, n, 5, 9),
        words(1, Purpose.COHORT, n, 5, 9),
        words(1, Purpose.BATCHES, n + 1, 5, 9),
    ]
    others += [
        words(1, Purpose.BATCHES, n, 6, 9),
        words(1, Purpose.BATCHES, n, 5, 10),
        words(1, Purpose.BATCHES, n, 9, 5),
    ]
    for other in others:
        assert abs(bits(base ^ other).mean() - 0.5) < 0.01
        assert abs(spearmanr(base.astype(float), other.astype(float)).statistic) < 0.1


def test_generators_of_different_counters_differ() -> None:
    draws = {generator(0, purpose, t).integers(2**63) for purpose in Purpose for t in range(50)}
    assert len(draws) == len(Purpose) * 50
    assert generator(3, Purpose.COHORT, 4).random() == generator(3, Purpose.COHORT, 4).random()


@pytest.mark.parametrize("has_accelerator", [False, True])
def test_torch_is_seeded_as_by_its_own_function(has_accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_accelerator)
    for seed in (0, 7, 2**63 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(3)
        torch.rand(1)
        seed_torch(seed)
        assert torch.equal(torch.rand(3), expected)
