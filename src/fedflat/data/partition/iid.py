from __future__ import annotations

import numpy as np

from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, cut, equal_sizes


class IID(Partition):
    """A random split into equal sizes.

    The IID split of McMahan et al. (2017). With `stratified`, as Acar et al. (2021) split CIFAR-100, the samples
    are distributed class after class: the numbers of samples of a class differ by at most one between clients.
    """

    stratified: bool = hyper(False, "distribute every class evenly over the clients")

    @property
    def needs_classes(self) -> bool:
        return self.stratified

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        shuffled = rng.permutation(len(samples))
        if not self.stratified:
            return cut(shuffled, clients)
        equal_sizes(len(samples), clients)  # raises for too many clients
        by_class = shuffled[np.argsort(samples.labels[shuffled], kind="stable")]
        return [np.sort(by_class[client::clients]) for client in range(clients)]
