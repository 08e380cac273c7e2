from __future__ import annotations

import numpy as np

from ...core.hyper import hyper
from .scheme import Index, Partition, draw_by_prior


class Dirichlet(Partition):
    """Label skew at equal sizes: every client has its own class prior, drawn from Dir(alpha, ..., alpha).

    The scheme of Acar et al. (2021): samples are drawn from the priors without replacement, so each
    is used exactly once. Small alpha gives a client few classes; large alpha approaches IID.
    """

    alpha: float = hyper(0.1, "concentration per class", low=0, open_low=True)

    def split(self, labels: Index, classes: int, clients: int, rng: np.random.Generator) -> list[Index]:
        return draw_by_prior(labels, rng.dirichlet(np.full(classes, self.alpha), clients), rng)
