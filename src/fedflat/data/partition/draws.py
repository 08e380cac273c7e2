"""What schemes draw: the order in each class, shares, and samples by class priors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import nextafter

import numpy as np
from numpy.typing import NDArray

from ..federated import Index
from .scheme import Samples, equal_sizes

Priors = NDArray[np.float64]  # (clients, classes); in deals a row need not sum to 1


def class_pools(samples: Samples, rng: np.random.Generator) -> list[Index]:
    """The samples of every class in random order, `classes` arrays."""
    return [rng.permutation(np.flatnonzero(samples.labels == label)) for label in range(samples.classes)]


def dirichlet_shares(alpha: float, rows: int, columns: int, rng: np.random.Generator) -> Priors:
    """Draws from Dir(alpha, ..., alpha), (rows, columns); rows sum to 1."""
    shares = rng.dirichlet(np.full(columns, alpha), rows)
    # The sum of gamma draws overflows for alpha beyond about 1e300, where all shares are equal.
    return np.where(shares.sum(1, keepdims=True) > 0, shares, 1 / columns)


def random_turns(samples: Samples, clients: int, rng: np.random.Generator) -> Index:
    """The client of every turn, (n,): each as often as its equal share of the samples is large."""
    return rng.permutation(np.repeat(np.arange(clients), equal_sizes(len(samples), clients)))


def deal(pools: list[Index], priors: Priors, turns: Index, rng: np.random.Generator) -> list[Index]:
    """Without replacement: what every client holds after `turns` (slots <= n,), ascending.

    A class that runs out leaves every prior, and what remains is renormalised. A client whose prior
    has nothing left draws from all that is left, in proportion.
    """
    table = _Table(pools, priors)
    taken: list[list[int]] = [[] for _ in priors]
    for client, uniform in zip(turns.tolist(), rng.random(len(turns)).tolist(), strict=True):
        taken[client].append(table.take(client, uniform))
    return [np.array(sorted(mine), dtype=np.int64) for mine in taken]


class _Table:
    """The samples that are left, and each client's prior over their classes as running sums.

    The sums are made anew only after a class ran out, which happens `classes` times in all.
    """

    def __init__(self, pools: list[Index], priors: Priors) -> None:
        self.pools: list[list[int]] = [pool.tolist() for pool in pools]
        self.priors = priors
        self.left = np.array([len(pool) > 0 for pool in pools])  # (classes,)
        self.sums: list[_Sums | None] = [None] * len(priors)

    def take(self, client: int, uniform: float) -> int:
        """One sample for `client`, by a number in [0, 1); it leaves the table."""
        sums = self.sums[client] or self._sums(client)
        label = (sums if sums.total > 0 else _Sums(list(accumulate(map(len, self.pools))))).pick(uniform)
        sample = self.pools[label].pop()
        if not self.pools[label]:
            self.left[label] = False
            self.sums = [None] * len(self.sums)
        return sample

    def _sums(self, client: int) -> _Sums:
        prior = np.where(self.left, self.priors[client], 0.0)
        # The total is numpy's pairwise sum, which may differ from the last running sum in its last bit.
        sums = self.sums[client] = _Sums(prior.cumsum().data, float(prior.sum()))
        return sums


class _Sums:
    """Running sums of weights, to draw an index in proportion to them."""

    def __init__(self, running: Sequence[float], total: float | None = None) -> None:
        self.running = running
        self.total = float(running[-1]) if total is None else total
        self.below = nextafter(running[-1], 0)

    def pick(self, uniform: float) -> int:
        """The index at the share `uniform` in [0, 1) of the total; its weight is not 0."""
        # Rounding can reach the last sum, beyond which there is no index.
        return bisect_right(self.running, min(uniform * self.total, self.below))


def deal_with_refill(pools: list[Index], priors: Priors, turns: Index, rng: np.random.Generator) -> list[Index]:
    """With refill: what every client holds after `turns` (slots,), ascending, a sample perhaps twice.

    The samples of a class are taken in the order of its pool, and from the start again when it is
    exhausted. A client whose prior has no weight on a class with samples draws in proportion to the classes.
    """
    labels = _labels(np.array([len(pool) for pool in pools]), priors, turns, rng)
    taken = np.empty(len(turns), dtype=np.int64)
    for label, pool in enumerate(pools):
        slots = np.flatnonzero(labels == label)
        taken[slots] = pool[np.arange(len(slots)) % max(1, len(pool))]
    return [np.sort(taken[slots]) for slots in _slots(turns, len(priors))]


def _labels(sizes: Index, priors: Priors, turns: Index, rng: np.random.Generator) -> Index:
    """The class drawn in every turn, (slots,), for classes of `sizes` (classes,)."""
    labels, uniform = np.empty(len(turns), dtype=np.int64), rng.random(len(turns))
    for client, slots in enumerate(_slots(turns, len(priors))):
        running = np.where(sizes > 0, priors[client], 0.0).cumsum()
        running = running if running[-1] > 0 else sizes.cumsum().astype(float)
        places = np.minimum(uniform[slots] * running[-1], np.nextafter(running[-1], 0))
        labels[slots] = np.searchsorted(running, places, side="right")
    return labels


def _slots(turns: Index, clients: int) -> list[Index]:
    """The turns of every client, in order."""
    return np.split(np.argsort(turns, kind="stable"), np.cumsum(np.bincount(turns, minlength=clients))[:-1])
