"""The assignment of samples to clients: the split by a partition scheme, and each client's validation samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import InputError, shortened
from .dataset import LoadedDataset
from .partition import Partition
from .partition.scheme import Samples, parts_of
from .types import Index, Members


@dataclass(frozen=True)
class Holdings:
    """The samples of every client: client i holds `members[offsets[i] : offsets[i + 1]]`."""

    members: Members  # (sum of sizes,) sample indices, client after client
    offsets: Index  # (clients + 1,)

    @classmethod
    def of(cls, parts: Sequence[Members]) -> Holdings:
        """Join the sample indices of every client."""
        return cls(np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64))

    @property
    def sizes(self) -> Index:
        """Samples per client, (clients,)."""
        return np.diff(self.offsets)

    def parts(self) -> list[Members]:
        """Return the sample indices of every client."""
        return np.split(self.members, self.offsets[1:-1])


def check_split(clients: Any, partition: Any, seed: Any) -> None:
    """Raise InputError, naming the field, for arguments that describe no split."""
    for what, value, least in (("clients", clients, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"data.{what} must be a whole number of at least {least}, got {value!r}")
    if not isinstance(partition, Partition | None):
        raise InputError(f"partition must be a scheme such as Dirichlet(alpha=0.1), got {shortened(repr(partition))}")


def split_samples(loaded: LoadedDataset, clients: int, scheme: Partition, seed: int) -> Holdings:
    """Split the training samples over clients by `scheme`. Raises InputError, naming the field, if it cannot."""
    train = loaded.train
    if loaded.task != "classification" and scheme.needs_classes:
        raise InputError(f"partition = {scheme} splits by class, and the labels are those of {loaded.task}; use iid, "
                         "domain or natural")  # fmt: skip
    labels = train.y.numpy() if loaded.task == "classification" else np.zeros(len(train.y), dtype=np.int64)
    samples = Samples(labels, loaded.classes, train.domain, loaded.domains, train.user)
    return Holdings.of(parts_of(scheme, samples, clients, split_generator(seed)))


def hold_out(held: Holdings, share: float, rng: np.random.Generator) -> tuple[Holdings, Holdings]:
    """Move a random `share` of each client's samples to a validation set; return those for training and validation.

    The validation samples are drawn from the client's own samples, so they have its label distribution. All copies of
    a sample that a client holds twice are in the same set. Every client keeps samples to train on: one with fewer than
    two different samples has none for validation. Raises InputError if that is every client.
    """
    train, held_out = [], []
    for own in held.parts():
        different = np.unique(own)
        number = min(max(1, round(share * len(different))), len(different) - 1)
        chosen = rng.choice(different, number, replace=False)
        train.append(own[~np.isin(own, chosen)])
        held_out.append(np.sort(chosen))
    if not any(map(len, held_out)):
        raise InputError(f"data.validation = {share} needs a client with two different samples; "
                         "use fewer clients, or train without validation")  # fmt: skip
    return Holdings.of(train), Holdings.of(held_out)


def split_generator(seed: int, *counters: int) -> np.random.Generator:
    """Return the generator of a split (purpose 0 in `rounds.randomness`); with counter 1, of validation sets."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, *counters)))
