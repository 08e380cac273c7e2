"""What a split really is: sizes, classes per client, unused and duplicated samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .federated import FederatedData


@dataclass(frozen=True)
class PartitionFacts:
    """The realised split in numbers."""

    clients: int
    samples: int  # in the training set
    smallest: int  # samples of the smallest client
    median: float
    largest: int
    fewest_classes: int  # distinct classes of the client with the fewest
    mean_classes: float
    most_classes: int
    unused: int  # samples that no client holds
    duplicated: int  # holdings beyond the first of a sample
    validation: int = 0  # samples that their client does not train on

    def lines(self) -> list[str]:
        """The facts as text, one a line."""
        return [
            f"clients             {self.clients}",
            f"training samples    {self.samples} ({self.unused} unused, {self.duplicated} repeated"
            + (f", {self.validation} for validation)" if self.validation else ")"),
            f"samples per client  {self.smallest} to {self.largest}, median {self.median:g}",
            f"classes per client  {self.fewest_classes} to {self.most_classes}, mean {self.mean_classes:.2f}",
        ]


def partition_facts(data: FederatedData) -> PartitionFacts:
    """Measure the split of `data`."""
    held = (data.counts() > 0).sum(axis=1)
    distinct = len(np.unique(data.members))
    apart = np.empty(0, np.int64) if data.validation is None else data.validation.members
    used = len(np.union1d(data.members, apart))
    return PartitionFacts(
        clients=data.clients,
        samples=len(data.y),
        smallest=int(data.sizes.min()),
        median=float(np.median(data.sizes)),
        largest=int(data.sizes.max()),
        fewest_classes=int(held.min()),
        mean_classes=float(held.mean()),
        most_classes=int(held.max()),
        unused=len(data.y) - used,
        duplicated=len(data.members) - distinct,
        validation=len(apart),
    )
