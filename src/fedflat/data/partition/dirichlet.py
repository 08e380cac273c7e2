from __future__ import annotations

import numpy as np

from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, class_pools, dirichlet_shares, draw_without_replacement, random_turns


class Dirichlet(Partition):
    """Label skew at equal sizes: every client has its own class prior, drawn from Dir(alpha, ..., alpha).

    The scheme of Acar et al. (2021): a random client that is not full draws a class from its prior
    and takes a sample of it without replacement, so each sample is used exactly once. A class without
    remaining samples is removed from all priors; a client whose prior has no class left draws from all
    remaining samples.
    A small alpha gives a client few classes; a large alpha approaches IID.
    """

    alpha: float = hyper(0.1, "concentration per class", low=0, open_low=True)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        priors = dirichlet_shares(self.alpha, clients, samples.classes, rng)
        pools = class_pools(samples, rng)
        return draw_without_replacement(pools, priors, random_turns(samples, clients, rng), rng)
