"""Counter-based randomness: every draw is a function of (seed, purpose, counters) alone, not of earlier draws.

So sequential clients, stacks of clients, several processes and a resumed run all draw the same numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint64]
ALL = 0xFFFF_FFFF_FFFF_FFFF  # 64 bits


class Purpose(IntEnum):
    """The purpose of a draw. Numbers never change their meaning; 0 is the partition of the data."""

    MODEL = 1
    COHORT = 2
    BATCHES = 3
    DROPOUT = 4
    AUGMENTATION = 5
    STRAGGLERS = 6
    ADAPTER = 7
    ATTACK = 8
    COMPRESSION = 9


def generator(seed: int, purpose: Purpose, *counters: int) -> np.random.Generator:
    """Return the generator for `counters`, e.g. the round."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), *counters)))


def seed_torch(seed: int) -> None:
    """Seed torch's random state, from 0 to 2^63 - 1, on all devices.

    Without an accelerator, `torch.manual_seed` does the same in a hundred times as long: it formats the stack of calls
    for each kind of accelerator.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def words(seed: int, purpose: Purpose, *counters: Any) -> Words:
    """Return 64 random bits for every combination of the counters (integers or arrays, broadcast together).

    The finaliser of SplitMix64 (Steele et al., 2014) is chained over the counters. This takes a few vector operations
    for all samples of a cohort; one generator per client would take microseconds for each client.
    """
    state: Any = _mix(seed & ALL)
    for counter in (int(purpose), *counters):
        # Python's integers are mixed ten times as fast as numpy's.
        number = int(counter) & ALL if np.ndim(counter) == 0 else np.asarray(counter).astype(np.uint64)
        state = _mix(state ^ _mix(number))
    return np.asarray(state, dtype=np.uint64)


def _mix(x: Any) -> Any:
    """Map 64-bit words, integers or arrays, by a bijection in which every input bit affects every output bit."""
    x = (x + 0x9E3779B97F4A7C15) & ALL
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL
    return x ^ (x >> 31)
