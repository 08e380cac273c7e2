"""Random draws of the partition schemes: the order in each class, Dirichlet shares, and samples by class priors."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import nextafter

import numpy as np
from numpy.typing import NDArray

from ..federated import Index
from .scheme import Samples, equal_sizes

Priors = NDArray[np.float64]  # (clients, classes): each client's weights of the classes; a row need not sum to 1


def class_pools(samples: Samples, rng: np.random.Generator) -> list[Index]:
    """The samples of every class in random order, `classes` arrays."""
    return [rng.permutation(np.flatnonzero(samples.labels == label)) for label in range(samples.classes)]


def dirichlet_shares(alpha: float, rows: int, columns: int, rng: np.random.Generator) -> Priors:
    """Draws from Dir(alpha, ..., alpha), (rows, columns); rows sum to 1."""
    shares = rng.dirichlet(np.full(columns, alpha), rows)
    # The sum of gamma draws overflows for alpha beyond about 1e300, where all shares are equal.
    return np.where(shares.sum(1, keepdims=True) > 0, shares, 1 / columns)


def random_turns(samples: Samples, clients: int, rng: np.random.Generator) -> Index:
    """The clients in the random order in which they draw a sample, (n,); all draw equally often."""
    return rng.permutation(np.repeat(np.arange(clients), equal_sizes(len(samples), clients)))


def draw_without_replacement(pools: list[Index], priors: Priors, turns: Index, rng: np.random.Generator) -> list[Index]:
    """The samples of every client, ascending, if client `turns[j]` draws in turn j; (turns,), at most n of them.

    A class without samples left leaves every prior, and the rest is renormalised. A client whose prior has no class
    left draws from all samples that are left.
    """
    remaining = _Remaining(pools, priors)
    drawn: list[list[int]] = [[] for _ in priors]
    for client, uniform in zip(turns.tolist(), rng.random(len(turns)).tolist(), strict=True):
        drawn[client].append(remaining.draw(client, uniform))
    return [np.array(sorted(own), dtype=np.int64) for own in drawn]


class _Remaining:
    """The samples that are left, and each client's prior over their classes as cumulative sums.

    The sums are computed again only after a class has run out, which happens `classes` times in all.
    """

    def __init__(self, pools: list[Index], priors: Priors) -> None:
        self.pools: list[list[int]] = [pool.tolist() for pool in pools]
        self.priors = priors
        self.left = np.array([len(pool) > 0 for pool in pools])  # (classes,)
        self.sums: list[_CumulativeSums | None] = [None] * len(priors)

    def draw(self, client: int, uniform: float) -> int:
        """Remove one sample for `client`, chosen by a number in [0, 1), and return it."""
        sums = self.sums[client] or self._sums(client)
        if sums.total <= 0:
            sums = _CumulativeSums(list(accumulate(map(len, self.pools))))
        label = sums.index_at(uniform)
        sample = self.pools[label].pop()
        if not self.pools[label]:
            self.left[label] = False
            self.sums = [None] * len(self.sums)
        return sample

    def _sums(self, client: int) -> _CumulativeSums:
        prior = np.where(self.left, self.priors[client], 0.0)
        # The total is numpy's pairwise sum, which may differ from the last cumulative sum in its last bit.
        sums = self.sums[client] = _CumulativeSums(prior.cumsum().data, float(prior.sum()))
        return sums


class _CumulativeSums:
    """Cumulative sums of weights, to draw an index in proportion to its weight."""

    def __init__(self, sums: Sequence[float], total: float | None = None) -> None:
        self.sums = sums
        self.total = float(sums[-1]) if total is None else total
        self.below = nextafter(sums[-1], 0)

    def index_at(self, uniform: float) -> int:
        """The index at the share `uniform` in [0, 1) of the total; its weight is not 0."""
        # Rounding can reach the last sum, beyond which there is no index.
        return bisect_right(self.sums, min(uniform * self.total, self.below))


def draw_with_refill(pools: list[Index], priors: Priors, turns: Index, rng: np.random.Generator) -> list[Index]:
    """The samples of every client, ascending, perhaps with repetitions, if client `turns[j]` draws in turn j.

    The samples of a class are taken in the order of its pool, and from the start again when all are taken. A client
    whose prior has no weight on a class with samples draws in proportion to the classes' sizes.
    """
    labels = _labels(np.array([len(pool) for pool in pools]), priors, turns, rng)
    drawn = np.empty(len(turns), dtype=np.int64)
    for label, pool in enumerate(pools):
        own = np.flatnonzero(labels == label)
        drawn[own] = pool[np.arange(len(own)) % max(1, len(pool))]
    return [np.sort(drawn[own]) for own in _turns_of_clients(turns, len(priors))]


def _labels(sizes: Index, priors: Priors, turns: Index, rng: np.random.Generator) -> Index:
    """The class drawn in every turn, (turns,), for classes of `sizes` (classes,)."""
    labels, uniform = np.empty(len(turns), dtype=np.int64), rng.random(len(turns))
    for client, own in enumerate(_turns_of_clients(turns, len(priors))):
        sums = np.where(sizes > 0, priors[client], 0.0).cumsum()
        sums = sums if sums[-1] > 0 else sizes.cumsum().astype(float)
        places = np.minimum(uniform[own] * sums[-1], np.nextafter(sums[-1], 0))
        labels[own] = np.searchsorted(sums, places, side="right")
    return labels


def _turns_of_clients(turns: Index, clients: int) -> list[Index]:
    """The numbers of the turns of every client, ascending."""
    return np.split(np.argsort(turns, kind="stable"), np.cumsum(np.bincount(turns, minlength=clients))[:-1])
