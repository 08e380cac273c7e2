from __future__ import annotations

import numpy as np

from ...core.errors import InputError
from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples, class_pools


class Shards(Partition):
    """Label skew: samples are sorted by label and cut into equal shards; clients get `shards_per_client` random shards.

    The non-IID split of McMahan et al. (2017). Most clients hold at most as many classes as shards:
    fewer if two shards have the same class, more if a shard spans two classes.
    """

    shards_per_client: int = hyper(2, "shards a client holds", low=1)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        count = clients * self.shards_per_client
        if count > len(samples):
            raise InputError(
                f"partition.shards_per_client = {self.shards_per_client} with data.clients = {clients} makes "
                f"{count} shards of {len(samples)} samples"
            )
        chosen = rng.permutation(count).reshape(clients, self.shards_per_client)
        shards = np.array_split(np.concatenate(class_pools(samples, rng)), count)
        return [np.sort(np.concatenate([shards[shard] for shard in own])) for own in chosen]
