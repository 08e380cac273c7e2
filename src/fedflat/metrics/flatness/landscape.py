"""The loss of a model on fixed samples, as a function of its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import numpy as np
import torch
from torch import Tensor

from ...core.objective import Batch, Objective
from ...data.federated import FederatedData, Members
from .passes import Footprint

MEMORY = 512 * 2**20  # bytes that the samples of a gradient or of Hessian products may take at once


class Landscape:
    """F: the mean cross-entropy over `samples`, without weight decay, the model in evaluation mode.

    Sums over samples are computed chunk by chunk, in float64; a chunk is as large as `memory` allows.
    """

    def __init__(self, objective: Objective, data: FederatedData, samples: Members, memory: int = MEMORY) -> None:
        """`data` is on the device and in the dtype of the model; `samples` (n,) are indices into it."""
        self.objective, self.data, self.memory = objective, data, memory
        self.samples = torch.from_numpy(samples.astype(np.int64)).to(data.y.device)
        self.footprint = Footprint(objective, self.batch(self.samples[:1]))

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.samples)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.objective.space.d

    def parts(self, number: int) -> list[Landscape]:
        """`number` landscapes, or one per sample if there are fewer, each on every `number`-th sample.

        F is their mean, weighted by their numbers of samples.
        """
        parts = [copy(self) for _ in range(min(number, len(self)))]
        for i, part in enumerate(parts):
            part.samples = self.samples[i :: len(parts)]
        return parts

    def loss(self, w: Tensor) -> float:
        """F at `w` (d,)."""
        with torch.no_grad(), self.objective.evaluating():
            chunks = self.batches(self.footprint.gradient)
            parts = [self.share(batch) * self.objective.loss(w, batch).double() for batch in chunks]
        return float(torch.stack(parts).sum())

    def gradient(self, w: Tensor) -> Tensor:
        """The gradient of F at `w` (d,), (d,)."""
        total = torch.zeros(self.d, dtype=torch.float64, device=w.device)
        with self.objective.evaluating():
            for batch in self.batches(self.footprint.gradient):
                total += self.share(batch) * self.objective.gradient(w, batch)
        return total.to(w.dtype)

    def batches(self, bytes_per_sample: float) -> Iterator[Batch]:
        """All samples, in batches as large as the memory allows at `bytes_per_sample`."""
        for some in torch.split(self.samples, self.at_once(bytes_per_sample)):
            yield self.batch(some)

    def at_once(self, bytes_per_sample: float) -> int:
        """How many samples the memory holds at `bytes_per_sample`; at least 1."""
        return min(len(self), max(1, int(self.memory // max(1.0, bytes_per_sample))))

    def batch(self, samples: Tensor) -> Batch:
        """The samples with these indices (b,), prepared for the model."""
        return Batch(self.data.inputs(samples), self.data.y[samples])

    def share(self, batch: Batch) -> float:
        """The share of the samples that is in `batch`."""
        return len(batch.y) / len(self)
