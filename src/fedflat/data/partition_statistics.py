"""Statistics of a split over clients: sizes, classes per client, unused and duplicated samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .federated import FederatedData


@dataclass(frozen=True)
class PartitionStatistics:
    """Statistics of a split of a data set over clients."""

    clients: int
    samples: int  # in the training set
    smallest: int  # samples of the smallest client
    median: float
    largest: int
    fewest_classes: int  # distinct classes of the client with the fewest; 0 if samples have none
    mean_classes: float
    most_classes: int
    unused: int  # samples that no client holds
    duplicated: int  # number of times that a sample is held again, by the same client or another
    validation: int = 0  # samples that are held out for validation

    def lines(self) -> list[str]:
        """Return the statistics as lines of text."""
        classes = f"classes per client  {self.fewest_classes} to {self.most_classes}, mean {self.mean_classes:.2f}"
        return [
            f"clients             {self.clients}",
            f"training samples    {self.samples} ({self.unused} unused, {self.duplicated} repeated"
            + (f", {self.validation} for validation)" if self.validation else ")"),
            f"samples per client  {self.smallest} to {self.largest}, median {self.median:g}",
            *([classes] if self.most_classes else []),
        ]


def partition_statistics(data: FederatedData) -> PartitionStatistics:
    """Return the statistics of the split of `data`."""
    classes = (data.counts() > 0).sum(axis=1) * data.form.has_counts
    validation = np.empty(0, np.int64) if data.validation is None else data.validation.members
    return PartitionStatistics(
        clients=data.clients,
        samples=len(data.y),
        smallest=int(data.sizes.min()),
        median=float(np.median(data.sizes)),
        largest=int(data.sizes.max()),
        fewest_classes=int(classes.min()),
        mean_classes=float(classes.mean()),
        most_classes=int(classes.max()),
        unused=len(data.y) - len(np.union1d(data.members, validation)),
        duplicated=len(data.members) - len(np.unique(data.members)),
        validation=len(validation),
    )
