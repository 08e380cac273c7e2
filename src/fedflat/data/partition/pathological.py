from __future__ import annotations

import numpy as np

from ...core.errors import InputError
from ...core.hyper import hyper
from .scheme import Index, Partition


class Pathological(Partition):
    """Label skew: every client holds samples of exactly `classes_per_client` random classes.

    Each client takes the classes that the fewest clients hold so far, ties broken at random, and a
    class is cut evenly between its holders: every sample is used once, and sizes are as equal as the
    classes are. With fewer holdings than classes, the classes that nobody took stay unused.
    """

    classes_per_client: int = hyper(2, "classes a client holds", low=1)

    def split(self, labels: Index, classes: int, clients: int, rng: np.random.Generator) -> list[Index]:
        if self.classes_per_client > classes:
            raise InputError(
                f"partition.classes_per_client = {self.classes_per_client} is more than the {classes} classes"
            )
        holders: list[list[int]] = [[] for _ in range(classes)]
        for client in range(clients):
            held = [len(group) for group in holders]
            for label in np.lexsort((rng.random(classes), held))[: self.classes_per_client]:
                holders[label].append(client)
        parts: list[list[Index]] = [[] for _ in range(clients)]
        for label, group in enumerate(holders):
            samples = int((labels == label).sum())
            if samples < len(group):
                raise InputError(
                    f"partition.classes_per_client = {self.classes_per_client} with data.clients = {clients} has "
                    f"{len(group)} clients share the {samples} samples of class {label}; take fewer clients or classes"
                )
            pieces = np.array_split(rng.permutation(np.flatnonzero(labels == label)), max(1, len(group)))
            for client, piece in zip(group, pieces, strict=False):
                parts[client].append(piece)
        return [np.sort(np.concatenate(pieces)) for pieces in parts]
