"""Datasets are read once, so a random transform in one would be frozen; a warning says so."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError

ITEMS = 64  # at most are read again, 33 at least: a transform that changes one in ten is missed once in 600 times


def warn_if_random(read: Callable[[int], Sequence[Any]], items: Sequence[Sequence[Any]], who: str) -> None:
    """Warn, naming `who`, if some of `items` are others when `read` gives them again. Random states are as before."""
    with _kept_random_states():
        for i in range(0, len(items), -(-len(items) // ITEMS) or 1):
            if _differs(items[i], read, i, f"data: {who}: sample {i}"):
                warnings.warn(f"data: {who}: sample {i} is another one when it is read again; a dataset is read once, "
                              "and a random transform would be the same in every epoch: leave it out; for pictures "
                              "there is augment='crop-flip'", stacklevel=2)  # fmt: skip
                return


def _differs(item: Sequence[Any], read: Callable[[int], Sequence[Any]], i: int, what: str) -> bool:
    try:
        (one, other), *labels = zip(item, read(i), strict=True)
        return not _same(one, other, what) or not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in labels)
    except InputError:
        raise
    except Exception:  # what cannot be compared is refused later, if it cannot be converted either
        return False


def _same(one: Any, other: Any, what: str) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if hasattr(one, "getbands") and hasattr(other, "getbands"):
        from .readers.pictures import pixels  # here, because it imports Pillow

        one, other = pixels(one, what), pixels(other, what)
    return np.array_equal(np.asarray(one), np.asarray(other))


@contextmanager
def _kept_random_states() -> Iterator[None]:
    """Restore the random states of `random`, numpy and torch (on the CPU) after the block."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
