"""The subject of a measure: a model, its loss on the data of its clients, and the next round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ...adapters import adapted_network, merged
from ...core.errors import InputError
from ...core.objective import Batch, Objective
from ...core.running_statistics import all_statistics
from ...data.federated import FederatedData
from ...data.types import Index, Members
from .passes import Footprint

MAX_SAMPLES = 2000
MEMORY = 512 * 2**20  # bytes that the samples of a gradient or of Hessian products may take at once


class Landscape:
    """The loss F: the mean loss over `samples`, without weight decay, with the model in evaluation mode.

    Sums over samples are computed chunk by chunk, in float64; a chunk is as large as `memory` allows.
    """

    def __init__(self, objective: Objective, data: FederatedData, samples: Members, memory: int = MEMORY) -> None:
        """Prepare the loss on `samples` (n,), indices into `data`, which has the device and the dtype of the model."""
        self.objective, self.data, self.memory = objective, data, memory
        self.samples = torch.from_numpy(samples.astype(np.int64)).to(data.y.device)
        self.footprint = Footprint(objective, self.batch(self.samples[:1]))

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.samples)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.objective.space.d

    def parts(self, number: int) -> list[Landscape]:
        """Split into `number` landscapes, or one per sample if there are fewer samples, each on every `number`-th one.

        F is their mean, weighted by their numbers of samples.
        """
        parts = [copy(self) for _ in range(min(number, len(self)))]
        for i, part in enumerate(parts):
            part.samples = self.samples[i :: len(parts)]
        return parts

    def loss(self, w: Tensor) -> float:
        """Compute F at `w` (d,)."""
        with torch.no_grad(), self.objective.evaluating():
            chunks = self.batches(self.footprint.gradient)
            parts = [self.share(batch) * self.objective.loss(w, batch).double() for batch in chunks]
        return float(torch.stack(parts).sum())

    def gradient(self, w: Tensor) -> Tensor:
        """Compute the gradient of F at `w` (d,), (d,)."""
        total = torch.zeros(self.d, dtype=torch.float64, device=w.device)
        with self.objective.evaluating():
            for batch in self.batches(self.footprint.gradient):
                total += self.share(batch) * self.objective.gradient(w, batch)
        return total.to(w.dtype)

    def batches(self, bytes_per_sample: float) -> Iterator[Batch]:
        """Yield all samples, in batches as large as the memory allows at `bytes_per_sample`."""
        for some in torch.split(self.samples, self.at_once(bytes_per_sample)):
            yield self.batch(some)

    def at_once(self, bytes_per_sample: float) -> int:
        """Return how many samples the memory holds at `bytes_per_sample`; at least 1."""
        return min(len(self), max(1, int(self.memory // max(1.0, bytes_per_sample))))

    def batch(self, samples: Tensor) -> Batch:
        """Return the samples with these indices (b,), prepared for the model."""
        return Batch(self.data.inputs(samples), self.data.y[samples])

    def share(self, batch: Batch) -> float:
        """Return the share of the samples that is in `batch`."""
        return len(batch.y) / len(self)


@dataclass(frozen=True)
class Mean:
    """The weighted mean of landscapes."""

    parts: list[tuple[float, Landscape]]  # weights, whose sum need not be 1

    def loss(self, w: Tensor) -> float:
        """Compute the mean loss at `w` (d,)."""
        return sum(weight * F.loss(w) for weight, F in self.parts) / sum(weight for weight, _ in self.parts)

    def gradient(self, w: Tensor) -> Tensor:
        """Compute the gradient of the mean loss at `w` (d,), (d,)."""
        total = torch.zeros_like(w, dtype=torch.float64)
        for weight, F in self.parts:
            total += weight * F.gradient(w)
        return (total / sum(weight for weight, _ in self.parts)).to(w.dtype)


class RoundObserver:
    """Observes a dry round: records what it needs and changes nothing. This base class records nothing."""

    def step(self, clients: Index, k: int, w: Tensor, perturbation: Tensor) -> None:
        """Receive local step `k` of `clients` (c,), with their models `w` (c, d) before the step.

        The method takes its descent gradient at `w + perturbation`, (c, d).
        """

    def done(self, clients: Index, w: Tensor) -> None:
        """Receive the local models `w` (c, d) of `clients` (c,) at the end of their round."""


@dataclass(frozen=True)
class NextRound:
    """The result of a dry round: a round that is computed without changing the run."""

    clients: Index  # (c,)
    after: Tensor  # (d,) the server's model after the round


DryRound = Callable[[Index | None, RoundObserver], NextRound]  # clients (None: the next cohort) and their observer


@dataclass(frozen=True)
class Subject:
    """A model `w` (d,) on the training samples of its clients, in evaluation mode and without weight decay.

    The pooled samples are at most `max_samples`, evenly spaced over the clients' samples, the same for every model.
    The samples of a client are all samples that it holds, or at most `max_samples` of them, evenly spaced.
    """

    objective: Objective
    w: Tensor
    data: FederatedData  # on the device and in the dtype of the model
    max_samples: int = MAX_SAMPLES
    memory: int = MEMORY
    dry_round: DryRound | None = None  # None for a model without a run
    iterate: Tensor | None = None  # (d,) the model that the next round starts from, if not `w`
    direction: Tensor | None = None  # (d,) h of the last step, iterate = before - eta h; None before the first round
    weights: Literal["uniform", "samples"] = "uniform"  # of the clients in the server's mean
    is_merged: bool = False  # whether `w` are the weights of adapted layers, see `merged`

    def training(self) -> Subject:
        """Return the subject at the model that is trained, for a measure that needs a round."""
        return self if self.iterate is None else replace(self, w=self.iterate)

    @cached_property
    def merged(self) -> Subject:
        """The same model without adapters; `w` are the weights of the adapted layers; all others are fixed.

        The merged subject has no round, and holds a copy of the model.
        """
        module = merged(self.objective.module, self.objective.space, self.w)
        objective = Objective(module, task=self.objective.task, buffers="frozen" if all_statistics(module) else None)
        w = objective.space.flatten(objective.module)
        return replace(self, objective=objective, w=w, dry_round=None, iterate=None, is_merged=True)

    @property
    def coordinates(self) -> str:
        """A description of the coordinates of `w` for a model with adapters; empty for other models."""
        if self.is_merged:
            return f"over the {len(self.w):,} weights of the adapted layers, adapters merged in"
        return "" if adapted_network(self.objective.module) is None else f"over the {len(self.w):,} trained parameters"

    @property
    def statistics(self) -> str:
        """A description of the running statistics that normalise the samples; empty for a model without any."""
        if self.objective.statistics.width:
            return "running statistics of the server"
        return "running statistics of the model" if all_statistics(self.objective.module) else ""

    @cached_property
    def pooled(self) -> Landscape:
        """The loss on the training samples of all clients together."""
        return self._landscape(self.data.members)

    def together(self, clients: Index) -> Mean:
        """Return the mean of the losses `client(i)` of `clients` (c,), weighted by their numbers of samples."""
        return Mean([(float(self.data.sizes[i]), self.client(i)) for i in clients])

    def used_of(self, clients: Index) -> int:
        """Count the samples that the losses `client(i)` of `clients` (c,) use together."""
        sizes = self.data.sizes[clients]
        return int((-(-sizes // -(-sizes // self.max_samples))).sum())

    def client(self, i: int) -> Landscape:
        """Return the loss of client `i` on its training samples."""
        return self._landscape(self.data.members[self.data.offsets[i] : self.data.offsets[i + 1]])

    @property
    def total(self) -> int:
        """Number of training samples."""
        return len(self.data.members)

    @property
    def samples(self) -> str:
        """A description of the samples used."""
        return self.part(len(self.pooled))

    def part(self, used: int) -> str:
        """Describe `used` samples as a part of the training samples."""
        return (
            f"all {used:,} training samples" if used == self.total else f"{used:,} of {self.total:,} training samples"
        )

    def some_clients(self, number: int) -> Index:
        """Choose `number` clients, or all if there are fewer, evenly spaced and the same for every model, (c,)."""
        return np.linspace(0, self.data.clients, min(number, self.data.clients), endpoint=False).astype(np.int64)

    def next_round(self, clients: Index | None, observer: RoundObserver) -> NextRound:
        """Compute the next round, with its cohort or with `clients` (c,), as a dry round that `observer` observes.

        Raises InputError for a subject without a run.
        """
        if self.dry_round is None:
            raise InputError("this measure looks at a round of training; measure a run, not a model alone")
        return self.dry_round(clients, observer)

    def _landscape(self, samples: Members) -> Landscape:
        step = -(-len(samples) // self.max_samples)
        return Landscape(self.objective, self.data, samples[::step], self.memory)
