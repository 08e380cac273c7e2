from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np

from ...core.errors import InputError
from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, class_pools, dirichlet_shares, places_by_client


class LabelDirichlet(Partition):
    """Label and size skew: the shares of each class over the clients are drawn from Dir(alpha, ..., alpha).

    The scheme of Yurochkin et al. (2019) and Li et al. (2022, NIID-Bench), with one change: the papers draw
    again until no client is too small, which may never end. Here a client with fewer than `least`
    samples takes random samples, one at a time, from the client that is the largest at that moment.
    """

    alpha: float = hyper(0.1, "concentration per client", low=0, open_low=True)
    least: int = hyper(1, "samples of the smallest client", low=1)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        if self.least * clients > len(samples):
            raise InputError(
                f"partition.least = {self.least} with data.clients = {clients} needs {self.least * clients} "
                f"samples, but there are {len(samples)}"
            )
        owner = np.empty(len(samples), dtype=np.int64)
        shares = dirichlet_shares(self.alpha, samples.classes, clients, rng)
        for pool, row in zip(class_pools(samples, rng), shares, strict=True):
            ends = (np.cumsum(row)[:-1] * len(pool)).astype(np.int64)
            owner[pool] = np.repeat(np.arange(clients), np.diff(ends, prepend=0, append=len(pool)))
        shuffled = rng.permutation(len(owner))
        parts = [shuffled[places].tolist() for places in places_by_client(owner[shuffled], clients)]
        _fill(parts, self.least)
        return [np.array(sorted(part), dtype=np.int64) for part in parts]


def _fill(parts: list[list[int]], least: int) -> None:
    """Move samples from the largest part, its last sample first, to parts with fewer than `least` samples."""
    largest = [(-len(part), client) for client, part in enumerate(parts)]
    heapify(largest)
    for part in parts:
        # While one part is below the mean another is above it, so the largest part never falls below `least`.
        while len(part) < least:
            size, giver = largest[0]
            part.append(parts[giver].pop())
            heapreplace(largest, (size + 1, giver))
