from __future__ import annotations

import numpy as np

from ...core.errors import InputError
from ..types import Index
from .scheme import Partition, Samples


class Natural(Partition):
    """The split that the data came with: each client holds all samples of one user.

    The setting of Caldas et al. (2018, LEAF). With fewer clients than users, the users are chosen at random,
    and the samples of the other users stay unused. Clients are in the order of the user ids.
    """

    needs_classes = False

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        if samples.user is None:
            raise InputError(
                "partition.name = 'natural' needs data with users, such as femnist, or user= with samples of your own"
            )
        by_user = np.argsort(samples.user, kind="stable")
        starts = np.unique(samples.user[by_user], return_index=True)[1]
        if clients > len(starts):
            raise InputError(f"data.clients = {clients} is more than the {len(starts)} users of the data")
        held = np.split(by_user, starts[1:])
        chosen = np.sort(rng.choice(len(held), clients, replace=False))
        return [held[user] for user in chosen]
