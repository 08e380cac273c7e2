from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, class_pools, cut, dirichlet_shares, equal_sizes


class BalancedDirichlet(Partition):
    """Label skew at equal sizes: one client after another draws its shares of the classes from Dir(alpha, ..., alpha).

    The scheme of the CIFAR split files of Hsu et al. (2020), which FedASAM, FedGF and FedGloSS use. Every sample is
    used exactly once. The number of samples of a class that a client takes is the class's share of the client's size,
    rounded. If a class has fewer samples left, the client takes them all, and draws new shares over the remaining
    classes for the samples that it still needs. The last clients therefore get the classes that are left. The split
    files have alpha * classes in their names: 0.05 and 100 with ten classes are alpha = 0.005 and 10 here.

    With alpha = 0 each client has one class, and each class has clients // classes clients. If the size of a class is
    not a multiple of a client's size, the last client of the class takes the rest of the class and the first samples
    of the next one.
    """

    alpha: float = hyper(0.1, "concentration per class; 0 is one class per client", low=0)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        sizes, pools = equal_sizes(len(samples), clients), class_pools(samples, rng)
        if self.alpha == 0:
            return cut(np.concatenate([pools[label] for label in rng.permutation(samples.classes)]), clients)
        left = np.array([len(pool) for pool in pools])
        parts = []
        for size in sizes:
            counts = self._counts(left, int(size), rng)
            parts.append(np.concatenate([pools[c][left[c] - counts[c] : left[c]] for c in np.flatnonzero(counts)]))
            left -= counts
        return [np.sort(part) for part in parts]

    def _counts(self, left: Index, size: int, rng: np.random.Generator) -> Index:
        """Draw a client's number of samples of each class, (classes,): `size` in all, and at most `left` (classes,)."""
        counts = np.zeros_like(left)
        while (missing := size - int(counts.sum())) > 0:  # each pass is the last one or uses up a class
            available = np.flatnonzero(left > counts)
            wanted = _rounded(missing * dirichlet_shares(self.alpha, 1, len(available), rng)[0], rng)
            counts[available] += np.minimum(wanted, (left - counts)[available])
        return counts


def _rounded(parts: NDArray[np.float64], rng: np.random.Generator) -> Index:
    """Round `parts` to integers with the same sum: the largest fractions up, ties at random, the others down."""
    whole = np.floor(parts).astype(np.int64)
    rest = round(float(parts.sum())) - int(whole.sum())
    whole[np.lexsort((rng.random(len(parts)), whole - parts))[:rest]] += 1
    return whole
