from __future__ import annotations

import numpy as np

from ...core.errors import InputError
from ...core.hyper import hyper
from ..types import Index
from .scheme import Partition, Samples


class Pathological(Partition):
    """Label skew: every client holds samples of exactly `classes_per_client` random classes.

    The setting of Sun et al. (2023, FedSMOO) and Xiao et al. (2026, FedVSSAM), without replacement.
    Each client takes the classes that the fewest clients hold so far, ties broken at random, and a
    class is divided evenly between its holders: every sample is used once, and sizes are as equal as the
    sizes of the classes. If clients * classes_per_client is below the number of classes, some classes stay unused.
    """

    classes_per_client: int = hyper(2, "classes a client holds", low=1)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        if self.classes_per_client > samples.classes:
            raise InputError(
                f"partition.classes_per_client = {self.classes_per_client} is more than the {samples.classes} classes"
            )
        holders = self._holders(samples.classes, clients, rng)
        parts: list[list[Index]] = [[] for _ in range(clients)]
        for label, group in enumerate(holders):
            own = np.flatnonzero(samples.labels == label)
            if len(own) < len(group):
                raise InputError(
                    f"partition.classes_per_client = {self.classes_per_client} with data.clients = {clients} has "
                    f"{len(group)} clients share the {len(own)} samples of class {label}; take fewer clients or classes"
                )
            for client, piece in zip(group, np.array_split(rng.permutation(own), max(1, len(group))), strict=False):
                parts[client].append(piece)
        return [np.sort(np.concatenate(pieces)) for pieces in parts]

    def _holders(self, classes: int, clients: int, rng: np.random.Generator) -> list[list[int]]:
        """Draw the clients that hold each class."""
        holders: list[list[int]] = [[] for _ in range(classes)]
        for client in range(clients):
            held = np.array([len(group) for group in holders])
            for label in np.lexsort((rng.random(classes), held))[: self.classes_per_client]:
                holders[label].append(client)
        return holders
