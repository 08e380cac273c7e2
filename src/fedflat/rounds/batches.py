"""The samples of each client at each local step of a round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, first_line
from ..core.objective import Batch, Objective
from ..data.federated import FederatedData
from ..data.preparation import to_device
from ..data.types import Index
from .local_training import Client
from .participation import Participation
from .randomness import Purpose, words


@dataclass(frozen=True)
class BatchPlan:
    """The local steps of some clients in one round, the client with most steps first."""

    t: int
    clients: Index  # (c,)
    steps: Index  # (c,) local steps of each, falling
    samples: Tensor  # (c, K, b) sample indices, K the most steps; -1 where there is no sample, at the end of a batch
    counts: Index  # (c, K) samples in each batch; kept on the CPU, so that no step waits for a device

    def active(self) -> list[int]:
        """Return for each step how many clients take it; these are the first clients of the plan."""
        active: list[int] = np.count_nonzero(self.steps[:, None] > np.arange(self.steps[0]), axis=0).tolist()
        return active

    def single(self, row: int) -> BatchPlan:
        """Return the plan of the one client at `row`."""
        here = slice(row, row + 1)
        steps = slice(self.steps[row])
        return BatchPlan(
            self.t, self.clients[here], self.steps[here], self.samples[here, steps], self.counts[here, steps]
        )

    def first(self, steps: int) -> BatchPlan:
        """Return a plan of at most the first `steps` steps of every client."""
        fewer = np.minimum(self.steps, steps)
        return replace(self, steps=fewer, samples=self.samples[:, :steps], counts=self.counts[:, :steps])


class Batches:
    """Draws batches: a fresh random order of the client's samples for every epoch, cut into batches."""

    def __init__(
        self,
        data: FederatedData,
        client: Client,
        seed: int,
        dtype: torch.dtype,
        participation: Participation | None = None,
    ) -> None:
        """Prepare batches of `data`; weights of samples have `dtype`. `participation` shortens stragglers' training."""
        self.data, self.client, self.seed, self.dtype = data, client, seed, dtype
        self._participation = participation

    @cached_property
    def size(self) -> int:
        """The most samples in a batch of any client."""
        return min(self.client.samples_per_step or self.data.largest, self.data.largest)

    def _length(self, sizes: Index) -> int:
        """Return the common length of batches for clients with `sizes` samples; some batches may be shorter.

        If the settings give a batch size, the length is `size` for all clients. The rounding of a sum over a batch
        depends on its length, and a client's training must not depend on the other clients in its stack.
        """
        return self.size if self.client.batch_size else int(sizes.max())

    @cached_property
    def always_full(self) -> bool:
        """Whether every batch of every client has `size` samples."""
        return bool((self.data.sizes % self.size == 0).all())

    def check_smallest(self, objective: Objective) -> None:
        """Raise InputError if a client has a batch of one sample, and the model cannot be trained on one."""
        if not objective.statistics.width:
            return
        size = self.client.batch_size or self.data.largest
        single = np.flatnonzero((self.data.sizes % size == 1) | (self.data.sizes == 1) | (size == 1))
        if not len(single):
            return
        sample = self.data.inputs(torch.zeros(1, dtype=torch.int64, device=self.data.y.device))
        try:
            with torch.no_grad():
                objective.logits(objective.space.flatten(objective.module), sample)
        except (ValueError, RuntimeError) as error:
            raise InputError(
                f"client.batch_size = {self.client.batch_size}: client {single[0]}, with {self.data.sizes[single[0]]} "
                f"samples, has a batch of one sample, on which the model cannot be trained: {first_line(error)}"
            ) from error

    def longest_first(self, t: int, clients: Index) -> Index:
        """Sort `clients` by local steps in round `t`, most first, so that the last clients of a stack finish first."""
        return clients[np.argsort(-self.steps(t, clients), kind="stable")]

    def steps(self, t: int, clients: Index) -> Index:
        """Return the local steps of each of `clients` (c,) in round `t`."""
        steps = self.client.local_steps(self.data.sizes_of(clients))
        rule = self._participation
        return steps if rule is None else rule.steps_taken(self.seed, t, clients, steps)

    def plan(self, t: int, clients: Index) -> BatchPlan:
        """Plan round `t` of `clients`, sorted by `longest_first`; the steps of a client depend on no other client."""
        steps = self.steps(t, clients)
        samples = self._samples(t, clients, steps)
        by_step = np.ascontiguousarray(samples.swapaxes(0, 1))  # the indices of one step in one piece of memory
        on_device = to_device(torch.from_numpy(by_step), self.data.y.device).transpose(0, 1)
        return BatchPlan(t, clients, steps, on_device, np.count_nonzero(samples >= 0, axis=-1))

    def batch(self, samples: Tensor, t: int, clients: Index, k: int, full: bool = True) -> Batch:
        """Return the batch of the sample indices (*clients, b), augmented for step `k` of round `t`.

        Unless the batch is `full`, an index of -1 marks a place without a sample, and the samples have weights.
        """
        weight = None
        if not full:
            present = (samples >= 0).to(self.dtype)
            weight = present / present.sum(-1, keepdim=True)
            samples = samples.clamp(min=0)
        return Batch(self._inputs(samples, t, clients, k), self.data.y[samples], weight)

    def _inputs(self, samples: Tensor, t: int, clients: Index, k: int) -> Tensor:
        """Return the model's input for the sample indices (*clients, b)."""
        augmentation = self.data.augmentation
        if augmentation is None:
            return self.data.inputs(samples)
        place = np.arange(samples.shape[-1])
        bits = words(self.seed, Purpose.AUGMENTATION, t, clients.reshape(*samples.shape[:-1], 1), k, place)
        return augmentation(self.data.stored(samples), bits, self.data.preparation)

    def everything(self, clients: Index, stacked: bool, filled: bool = True) -> Iterator[Batch]:
        """Yield all samples of `clients`, not augmented, in batches; the weights of a client sum to 1 over its batches.

        The sample indices of a batch are (c, b) if `stacked`, or (b,) for one client. filled: whether the last batch
        is as long as the others, with samples of weight zero.
        """
        sizes, starts = self.data.sizes_of(clients), self.data.starts_of(clients)
        size = self._length(sizes) if stacked else min(self.size, int(sizes.max()))
        size = min(size, self.client.batch_size or size)
        for first in range(0, int(sizes.max()), size):
            place = np.arange(first, first + size if filled else min(first + size, int(sizes.max())))
            exists = place < sizes[:, None]
            mine = self.data.held(starts[:, None] + np.where(exists, place, 0))
            device = self.data.y.device
            samples = to_device(torch.from_numpy(mine), device)
            weight = to_device(torch.from_numpy(exists / sizes[:, None]), device, self.dtype)
            if not stacked:
                samples, weight = samples[0], weight[0]
            yield Batch(self.data.inputs(samples), self.data.y[samples], weight)

    def _samples(self, t: int, clients: Index, steps: Index) -> Index:
        """Return the sample indices (c, K, b); step k of client i is batch k mod m_i of epoch k div m_i."""
        sizes, starts = self.data.sizes_of(clients), self.data.starts_of(clients)
        size = self._length(sizes)
        per_epoch = self.client.batches_per_epoch(sizes)
        orders = self._orders(t, clients, sizes, int((-(-steps // per_epoch)).max()))
        k = np.arange(steps[0])
        epoch, first = k // per_epoch[:, None], (k % per_epoch[:, None]) * size
        place = first[:, :, None] + np.arange(size)
        exists = (place < sizes[:, None, None]) & (k < steps[:, None])[:, :, None]
        rows, place = np.arange(len(clients))[:, None, None], np.where(exists, place, 0)
        mine = orders[rows, np.where(exists, epoch[:, :, None], 0), place]
        return np.where(exists, self.data.held(starts[:, None, None] + mine), -1)

    def _orders(self, t: int, clients: Index, sizes: Index, epochs: int) -> Index:
        """Return an order of each client's samples in each epoch, (c, epochs, n); n is the most samples of a client."""
        place = np.arange(sizes.max())
        if self.client.batch_size is None:
            return np.broadcast_to(place, (len(clients), epochs, len(place)))
        keys = words(self.seed, Purpose.BATCHES, t, clients[:, None, None], np.arange(epochs)[:, None], place)
        keys[np.broadcast_to(place >= sizes[:, None, None], keys.shape)] = np.iinfo(np.uint64).max
        return np.argsort(keys, axis=-1, kind="stable")
