"""Local training of the clients of one round, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.method import Context
from ..core.user_code import check_record, method_errors_named
from ..data.preparation import to_device
from ..data.types import Index
from ..metrics.accuracy import drift
from ..metrics.flatness.subject import RoundObserver
from ..rounds.aggregation import RunningMean
from ..rounds.device import aligned
from ..rounds.executor import Executor, stacked
from .arrivals import Arrivals
from .client_store import ClientStore
from .ranks import ALONE, Ranks


@dataclass(frozen=True)
class ChunkInput:
    """A chunk of the cohort, with the clients' records from their last rounds."""

    clients: Index  # (c,) longest work first
    record: Any  # (c, width)


@dataclass(frozen=True)
class ChunkResult:
    """The result of training one chunk; rows are clients."""

    received: Any  # what the server averages, (c, width)
    record: Any  # what the clients will keep, (c, width)
    steps: Tensor  # local steps, (c, 1)
    lr_factors: Tensor  # sums of the factors on their step sizes, (c, 1)
    drifts: Tensor  # ||w_i - w^t||, (c,)
    losses: Tensor  # mean training losses, (c,); see `core.local.local_step`
    gradients: int = 0  # minibatch gradients taken, by all clients of the chunk together

    def map(self, change: Callable[[Tensor], Tensor]) -> ChunkResult:
        """Return the result with `change` applied to each tensor."""
        records = self.received.map(change), self.record.map(change)
        numbers = change(self.steps), change(self.lr_factors), change(self.drifts), change(self.losses)
        return ChunkResult(*records, *numbers, self.gradients)

    def fill(self, other: ChunkResult) -> None:
        """Copy the tensors of `other` into those of this one."""
        for own, source in ((self.received, other.received), (self.record, other.record)):
            for name, place in own.tensors().items():
                place.copy_(getattr(source, name))
        self.steps.copy_(other.steps)
        self.lr_factors.copy_(other.lr_factors)
        self.drifts.copy_(other.drifts)
        self.losses.copy_(other.losses)


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, and what they are trained with."""

    clients: Index  # (c,), longest work first
    weights: Tensor  # of the clients in the mean, (c, 1)
    down: Any  # the server's message
    ctx: Context
    arrivals: Arrivals | None = None  # attacks and a guard on the clients' records; None without both


@dataclass(frozen=True)
class CohortResult:
    """The result of training a cohort, for the server."""

    mean: RunningMean  # the weighted mean of what the server receives, and of local steps
    drifts: Tensor  # ||w_i - w^t|| of each client, (c,)
    loss: float  # the weighted mean of the clients' training losses
    gradients: int  # minibatch gradients taken, by all clients together
    arrivals: Arrivals | None = None  # of the `Cohort`


class Trainer(Protocol):
    """Trains the chunks of a cohort, in this process or in others."""

    @property
    def executor(self) -> Executor:
        """The executor that runs the clients."""

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context, chunks: int) -> Generator[ChunkResult]:
        """Yield the result of each of `chunks` tasks, in order; each is valid until the next is asked for."""


@dataclass(frozen=True)
class InProcess:
    """Trains one chunk after another in this process; `observer` sees every local step."""

    executor: Executor
    observer: RoundObserver | None = None

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context, chunks: int = 0) -> Generator[ChunkResult]:
        """Yield the result of each task, in order."""
        for task in tasks:
            yield train_chunk(self.executor, task, down, ctx, self.observer)


def train(
    trainer: Trainer, store: ClientStore, cohort: Cohort, keep: bool, ranks: Ranks = ALONE,
    mean: RunningMean | None = None,
) -> CohortResult:  # fmt: skip
    """Train the clients of a round; each of several ranks trains a part of them.

    keep: stage the new records of the clients in the store, chunk by chunk, except those of clients that a guard
    refuses; the caller has to commit them. mean: sums up the records, by default a new `RunningMean`. Raises
    NonFiniteError if a client's model or message is not finite.
    """
    executor, clients, screening = trainer.executor, cohort.clients, cohort.arrivals
    mean = RunningMean(executor.method, cohort.down.w) if mean is None else mean
    drifts, losses = cohort.down.w.new_zeros(2, len(clients)).unbind()
    own = ranks.share(executor.batches.steps(cohort.ctx.t, clients), ranks.owners(clients) if store.keeps else None)
    groups = [own] if screening is None else screening.in_order(clients, own)
    chunks, gradients = [chunk for places in groups for chunk in _chunks(places, executor.chunk)], 0
    down = cohort.down.map(lambda x: aligned(x.to(cohort.down.w.dtype)))
    tasks = _tasks(store, [clients[places] for places in chunks], down)
    on_device = to_device(torch.from_numpy(np.concatenate(groups)), cohort.weights.device)
    rows_of_chunks = torch.split(on_device, [len(places) for places in chunks])
    with ranks.together(), closing(trainer.parts(tasks, down, cohort.ctx, len(chunks))) as parts:
        for places, rows, part in zip(chunks, rows_of_chunks, parts, strict=True):
            accepted, record = _add(mean, cohort, places, rows, part)
            if keep and len(accepted):
                store.stage(accepted, record)
            drifts[rows], losses[rows] = part.drifts, part.losses
            gradients += part.gradients
    ranks.add_up(mean, drifts, losses, *(() if screening is None else screening.of_clients))
    return _result(cohort, mean, drifts, losses, ranks.total(gradients))


def _result(cohort: Cohort, mean: RunningMean, drifts: Tensor, losses: Tensor, gradients: int) -> CohortResult:
    """Return the result from the drifts and losses of all clients (c,); refused clients do not count."""
    weights = cohort.weights
    if cohort.arrivals is not None:
        accepted = cohort.arrivals.accepted()
        drifts, losses, weights = drifts[accepted], losses[accepted], weights[accepted]
    loss = float((losses * weights[:, 0]).sum() / weights.sum())
    return CohortResult(mean, drifts, loss, gradients, cohort.arrivals)


def _chunks(places: Index, most: int) -> list[Index]:
    """Split `places` into chunks of at most `most`, as even as possible."""
    return np.array_split(places, -(-len(places) // most)) if len(places) else []


def _add(mean: RunningMean, cohort: Cohort, places: Index, rows: Tensor, part: ChunkResult) -> tuple[Index, Any]:
    """Add a chunk to `mean`; return the clients (n,) whose results count, and their new records (n, width).

    places, rows: where the chunk's clients are in the cohort, on the host and on the device.
    """
    clients, weights = cohort.clients[places], cohort.weights[rows]
    if cohort.arrivals is None:
        mean.add(part.received, part.steps, weights, part.lr_factors)
        return clients, part.record
    arrived = cohort.arrivals.take(cohort.clients, places, part.received, part.steps, part.lr_factors)
    accepted = arrived.accepted
    if len(accepted):
        received = arrived.received.map(lambda x: x[accepted])
        mean.add(received, arrived.steps[accepted], weights[accepted], arrived.lr_factors[accepted])
    return clients[accepted.cpu().numpy()], part.record.map(lambda x: x[accepted])


def _tasks(store: ClientStore, chunks: Sequence[Index], down: Any) -> Iterator[ChunkInput]:
    """Yield each chunk with its clients' records; the store reads those of the next chunk in the background."""
    for clients, following in zip(chunks, [*chunks[1:], np.empty(0, dtype=np.int64)], strict=False):
        record = store.get(clients, stacked(down, clients))
        store.prefetch(following)
        yield ChunkInput(clients, record.map(lambda x: aligned(x.to(down.w.dtype))))


def train_chunk(
    executor: Executor, task: ChunkInput, down: Any, ctx: Context, observer: RoundObserver | None = None
) -> ChunkResult:
    """Train the clients of a chunk; the result depends on the arguments only, so this may run in any process.

    Inputs and results are aligned in memory as if they were sent between processes, because rounding may depend on it.
    Raises NonFiniteError if a client's model or message is not finite.
    """
    method = executor.method
    with method_errors_named(method):  # here, because a worker's error has no traceback
        result = executor.train(task.clients, task.record, down, ctx, observer)
        at_client = replace(ctx, steps=result.steps, lr_sum=result.lr_factors * ctx.lr)
        received = check_record(method, "receive", method.receive(result.up, at_client), method.mean)
    numbers = result.steps, result.lr_factors, drift(result.w, down.w), result.loss
    part = ChunkResult(received, result.client, *numbers, result.gradients)
    return part.map(lambda x: aligned(x.to(down.w.dtype)))
