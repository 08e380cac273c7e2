from __future__ import annotations

import numpy as np

from ...core.hyper import hyper
from .draws import class_pools, deal, dirichlet_shares, random_turns
from .scheme import Index, Partition, Samples


class Dirichlet(Partition):
    """Label skew at equal sizes: every client has its own class prior, drawn from Dir(alpha, ..., alpha).

    The scheme of Acar et al. (2021): a random client that is not full draws a class from its prior
    and takes a sample of it without replacement, so each sample is used exactly once. A class that
    runs out leaves the priors; a client whose prior has nothing left draws from all that is left.
    Small alpha gives a client few classes; large alpha approaches IID.
    """

    alpha: float = hyper(0.1, "concentration per class", low=0, open_low=True)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        priors = dirichlet_shares(self.alpha, clients, samples.classes, rng)
        pools = class_pools(samples, rng)
        return deal(pools, priors, random_turns(samples, clients, rng), rng)
