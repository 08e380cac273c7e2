from __future__ import annotations

import numpy as np

from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, class_pools, dirichlet_shares, draw_with_refill, random_turns


class DirichletRefill(Partition):
    """Label skew at equal sizes with reuse: as Dirichlet, but when a class has no samples left, all its samples return.

    The split "with replacement" of Sun et al. (2023, FedSMOO): clients keep the priors they drew, sizes
    stay equal, and class totals become unbalanced. Samples of classes that clients prefer are held several
    times, by several clients or twice by one; equally many samples of other classes are held by no client.
    """

    alpha: float = hyper(0.1, "concentration per class", low=0, open_low=True)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        priors = dirichlet_shares(self.alpha, clients, samples.classes, rng)
        pools = class_pools(samples, rng)
        return draw_with_refill(pools, priors, random_turns(samples, clients, rng), rng)
