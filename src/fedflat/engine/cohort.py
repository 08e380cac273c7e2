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
    """A chunk of the cohort, with what its clients kept until now."""

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
        """`change` applied to every tensor."""
        records = self.received.map(change), self.record.map(change)
        numbers = change(self.steps), change(self.lr_factors), change(self.drifts), change(self.losses)
        return ChunkResult(*records, *numbers, self.gradients)

    def fill(self, other: ChunkResult) -> None:
        """Copy the tensors of `other` into those of this one."""
        for mine, its in ((self.received, other.received), (self.record, other.record)):
            for name, place in mine.tensors().items():
                place.copy_(getattr(its, name))
        self.steps.copy_(other.steps)
        self.lr_factors.copy_(other.lr_factors)
        self.drifts.copy_(other.drifts)
        self.losses.copy_(other.losses)


@dataclass(frozen=True)
class CohortResult:
    """The result of training a cohort, as the server needs it."""

    mean: RunningMean  # the weighted mean of what the server receives, and of local steps
    drifts: Tensor  # ||w_i - w^t|| of each client, (c,)
    loss: float  # the weighted mean of the clients' training losses
    gradients: int  # minibatch gradients taken, by all clients together
    arrivals: Arrivals | None = None  # what became of the clients' records, where some attack, or a guard checks them


class Trainer(Protocol):
    """Trains the chunks of a cohort, in this process or in others."""

    @property
    def executor(self) -> Executor:
        """The executor that runs the clients."""

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context, chunks: int) -> Generator[ChunkResult]:
        """Yield the result of each of `chunks` tasks, in order; each is valid until the next is asked for."""


@dataclass(frozen=True)
class InTurn:
    """One chunk after another, in this process; `observer` is shown every local step."""

    executor: Executor
    observer: RoundObserver | None = None

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context, chunks: int = 0) -> Generator[ChunkResult]:
        """Yield the result of each task, in order."""
        for task in tasks:
            yield train_chunk(self.executor, task, down, ctx, self.observer)


def train(
    trainer: Trainer,
    store: ClientStore,
    clients: Index,
    weights: Tensor,
    down: Any,
    ctx: Context,
    keep: bool,
    ranks: Ranks = ALONE,
    mean: RunningMean | None = None,
    arrivals: Arrivals | None = None,
) -> CohortResult:
    """Train `clients` (c,), longest work first, with weights (c, 1) in the mean; each of several ranks trains a part.

    With `keep` the new records of the clients are staged in the store, chunk by chunk, and the caller has to commit
    them; not those of clients that a guard refuses. mean: what adds up the records, default a new `RunningMean`.
    Raises NonFiniteError if a client's model or message is not finite.
    """
    executor, gradients = trainer.executor, 0
    mean = RunningMean(executor.method, down.w) if mean is None else mean
    drifts, losses = down.w.new_zeros(2, len(clients)).unbind()
    mine = ranks.share(executor.batches.steps(ctx.t, clients), ranks.owners(clients) if store.keeps else None)
    groups = [mine] if arrivals is None else arrivals.in_order(clients, mine)
    chunks = [chunk for places in groups for chunk in _chunks(places, executor.chunk)]
    down = down.map(lambda x: aligned(x.to(down.w.dtype)))
    tasks = _tasks(store, [clients[places] for places in chunks], down)
    ordered = np.concatenate(groups)
    on_device = torch.split(to_device(torch.from_numpy(ordered), weights.device), [len(places) for places in chunks])
    with ranks.together(), closing(trainer.parts(tasks, down, ctx, len(chunks))) as parts:
        for places, rows, part in zip(chunks, on_device, parts, strict=True):
            if arrivals is None:
                mean.add(part.received, part.steps, weights[rows], part.lr_factors)
                stays, record = clients[places], part.record
            else:
                stays, record = _screened(arrivals, mean, clients, places, weights[rows], part)
            if keep and len(stays):
                store.stage(stays, record)
            drifts[rows], losses[rows] = part.drifts, part.losses
            gradients += part.gradients
    ranks.add_up(mean, drifts, losses, *(() if arrivals is None else arrivals.of_clients))
    if arrivals is not None:
        accepted = arrivals.accepted()
        drifts, losses, weights = drifts[accepted], losses[accepted], weights[accepted]
    loss = float((losses * weights[:, 0]).sum() / weights.sum())
    return CohortResult(mean, drifts, loss, ranks.total(gradients), arrivals)


def _chunks(places: Index, most: int) -> list[Index]:
    """`places` in chunks of at most so many, as even as possible."""
    return np.array_split(places, -(-len(places) // most)) if len(places) else []


def _screened(
    arrivals: Arrivals, mean: RunningMean, clients: Index, places: Index, weights: Tensor, part: ChunkResult
) -> tuple[Index, Any]:
    """Add to the mean what the server accepts of a chunk; those of its clients (c,), and what they keep (c, width)."""
    arrived = arrivals.take(clients, places, part.received, part.steps, part.lr_factors)
    rows = arrived.accepted
    if len(rows):
        received = arrived.received.map(lambda x: x[rows])
        mean.add(received, arrived.steps[rows], weights[rows], arrived.lr_factors[rows])
    return clients[places[rows.cpu().numpy()]], part.record.map(lambda x: x[rows])


def _tasks(store: ClientStore, chunks: Sequence[Index], down: Any) -> Iterator[ChunkInput]:
    """Every chunk with its clients' records; the store reads those of the next chunk in the background."""
    for some, following in zip(chunks, [*chunks[1:], np.empty(0, dtype=np.int64)], strict=False):
        record = store.get(some, stacked(down, some))
        store.prefetch(following)
        yield ChunkInput(some, record.map(lambda x: aligned(x.to(down.w.dtype))))


def train_chunk(
    executor: Executor, task: ChunkInput, down: Any, ctx: Context, observer: RoundObserver | None = None
) -> ChunkResult:
    """Local training of some clients; it depends on the arguments only, so that it may run in any process.

    Its inputs and results are aligned in memory as if they were sent between processes, because rounding may depend on
    that. Raises NonFiniteError if a client's model or message is not finite.
    """
    method = executor.method
    with method_errors_named(method):  # here, because a worker's error has no traceback
        result = executor.train(task.clients, task.record, down, ctx, observer)
        at_client = replace(ctx, steps=result.steps, lr_sum=result.lr_factors * ctx.lr)
        received = check_record(method, "receive", method.receive(result.up, at_client), method.mean)
    numbers = result.steps, result.lr_factors, drift(result.w, down.w), result.loss
    part = ChunkResult(received, result.client, *numbers, result.gradients)
    return part.map(lambda x: aligned(x.to(down.w.dtype)))
