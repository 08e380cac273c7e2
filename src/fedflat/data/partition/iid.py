from __future__ import annotations

import numpy as np

from ...core.hyper import hyper
from .scheme import Index, Partition, Samples, cut, equal_sizes


class IID(Partition):
    """A random split into equal sizes.

    The IID split of McMahan et al. (2017). Stratified, as Acar et al. (2021) split CIFAR-100, the
    samples are dealt class after class: clients differ by at most one sample of any class.
    """

    stratified: bool = hyper(False, "deal every class evenly over the clients")

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        shuffled = rng.permutation(len(samples))
        if not self.stratified:
            return cut(shuffled, clients)
        equal_sizes(len(samples), clients)  # too many clients are a mistake here too
        dealt = shuffled[np.argsort(samples.labels[shuffled], kind="stable")]
        return [np.sort(dealt[client::clients]) for client in range(clients)]
