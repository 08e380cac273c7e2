from __future__ import annotations

import numpy as np

from ...core.errors import InputError
from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, class_pools, draw_with_refill, random_turns


class PathologicalRefill(Partition):
    """Label skew at equal sizes with reuse: every client draws evenly from `classes_per_client` random classes.

    The scheme of Sun et al. (2023, FedSMOO): clients choose independently. When a class has no samples left, all its
    samples can be drawn again. Class totals become unbalanced: samples of classes that many clients chose are held
    several times, by several clients or twice by one; other samples are held by no client.
    """

    classes_per_client: int = hyper(2, "classes a client holds", low=1)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        present = np.unique(samples.labels)
        if self.classes_per_client > len(present):
            raise InputError(
                f"partition.classes_per_client = {self.classes_per_client} is more than the {len(present)} classes"
            )
        priors = np.zeros((clients, samples.classes))
        for prior in priors:
            prior[rng.choice(present, self.classes_per_client, replace=False)] = 1.0
        pools = class_pools(samples, rng)
        return draw_with_refill(pools, priors, random_turns(samples, clients, rng), rng)
