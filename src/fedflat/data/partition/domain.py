from __future__ import annotations

import numpy as np

from ...core.errors import InputError
from ..types import Index
from .scheme import Partition, Samples, cut


class Domain(Partition):
    """Feature skew: every client holds samples of one domain; each domain is split at random into equal sizes.

    The setting of Fan et al. (2024, FedLESAM). Every domain has the same number of clients, which are numbered
    domain after domain in the order of the data.
    """

    needs_classes = False

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        if samples.domain is None:
            raise InputError(
                "partition.name = 'domain' needs data with domains, such as pacs, or domain= with samples of your own"
            )
        present = np.unique(samples.domain)
        if clients % len(present):
            names = ", ".join(samples.domains[domain] for domain in present)
            raise InputError(f"data.clients = {clients} is not a multiple of the {len(present)} domains ({names})")
        parts: list[Index] = []
        each = clients // len(present)
        for domain in present:
            own = rng.permutation(np.flatnonzero(samples.domain == domain))
            if len(own) < each:
                where = f"domain {samples.domains[domain]}, which has {len(own)} samples"
                raise InputError(f"data.clients = {clients} puts {each} clients into {where}")
            parts += cut(own, each)
        return parts
