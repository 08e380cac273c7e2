from __future__ import annotations

import numpy as np

from .scheme import Index, Partition, equal_sizes


class IID(Partition):
    """A random split into equal sizes."""

    def split(self, labels: Index, classes: int, clients: int, rng: np.random.Generator) -> list[Index]:
        ends = np.cumsum(equal_sizes(len(labels), clients))[:-1]
        return [np.sort(mine) for mine in np.split(rng.permutation(len(labels)), ends)]
