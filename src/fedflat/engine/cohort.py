"""The clients of one round: their local training, chunk by chunk, and the attacks and the guard on their records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Context, Method
from ..core.partial_model import sent_part
from ..core.user_code import check_record, method_errors_named
from ..data.preparation import to_device
from ..data.types import Index
from ..metrics.accuracy import drift
from ..metrics.flatness.subject import RoundObserver
from ..rounds.aggregation import RunningMean
from ..rounds.attack import Attackers, HonestMoments
from ..rounds.device import aligned
from ..rounds.executor import Executor, stacked
from ..rounds.guard import GuardState
from .client_store import ClientStore
from .ranks import ALONE, Ranks

NUMBERS = ("steps", "lr_factors", "drifts", "losses")  # fields of `ChunkResult`


@dataclass(frozen=True)
class ChunkInput:
    """A chunk of the cohort, with the clients' records from their last rounds."""

    clients: Index  # (c,), most local steps first
    record: Any  # (c, width)


@dataclass(frozen=True)
class ChunkResult:
    """The result of training one chunk; rows are clients."""

    received: Any  # the records that the server averages, (c, width)
    record: Any  # the records that the clients will keep, (c, width)
    steps: Tensor  # local steps, (c, 1)
    lr_factors: Tensor  # sums over steps of the factors on the step sizes, (c, 1)
    drifts: Tensor  # ||w_i - w^t||, (c,)
    losses: Tensor  # mean training losses, (c,); see `core.local.local_step`
    gradients: int = 0  # minibatch gradients of all clients of the chunk together

    def map(self, change: Callable[[Tensor], Tensor]) -> ChunkResult:
        """Return the result with `change` applied to each tensor."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in NUMBERS}
        return replace(self, received=self.received.map(change), record=self.record.map(change), **changed)

    def tensors(self) -> list[Tensor]:
        """Return all tensors, in an order that is the same in every process."""
        numbers = (getattr(self, name) for name in NUMBERS)
        return [*self.received.tensors().values(), *self.record.tensors().values(), *numbers]


class Arrivals:
    """Screens the records of one round, chunk by chunk: applies the attacks, then bounds or refuses records."""

    def __init__(
        self, method: Method, ctx: Context, clients: Index, like: Tensor,
        guard: GuardState | None, attackers: Attackers | None, inflates_steps: bool,
    ) -> None:  # fmt: skip
        """Prepare the round of `clients` (c,).

        like: a tensor on the device of the records. inflates_steps: whether the number of samples that a client claims
        determines its number of local steps.
        """
        self._method, self._ctx, self._guard, self._attackers = method, ctx, guard, attackers
        self._inflates_steps = inflates_steps and attackers is not None and attackers.attack.claims > 1
        self.attackers = 0 if attackers is None else len(attackers.among(clients))
        self._known = HonestMoments(len(clients), self.attackers)
        # For each client's record (c,): 1 if it is accepted; 1 if it was clipped; its norm as sent, and after clipping.
        self.of_clients = list(like.new_zeros(4, len(clients), dtype=torch.float64).unbind())

    def in_order(self, clients: Index, places: Index) -> list[Index]:
        """Split the `places` of clients into groups that are trained one after the other.

        Honest clients come first if attackers use the honest messages.
        """
        if self._attackers is None or not self._attackers.collude:
            return [places]
        bad = np.isin(clients[places], self._attackers.clients)
        return [places[~bad], places[bad]]

    def take(self, clients: Index, rows: Tensor, part: ChunkResult) -> tuple[ChunkResult, Tensor]:
        """Attack and screen the results of `clients` (c,), whose places in the round are `rows` (c,).

        Returns the accepted results as the server receives them, and the indices of their clients in `clients`,
        ascending.
        """
        if self._attackers is not None:
            if self._inflates_steps:
                steps, lr_factors = (self._attackers.claimed(clients, x) for x in (part.steps, part.lr_factors))
                part = replace(part, steps=steps, lr_factors=lr_factors)
            part = replace(part, received=self._attacked(clients, part))
        accepted = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        if self._guard is not None:
            screened = self._guard.screen(part.received, part.lr_factors * self._ctx.lr)
            part, accepted = replace(part, received=screened.record), screened.accepted
            for numbers, new in zip(
                self.of_clients[1:], (screened.clipped, screened.sent, screened.norms), strict=True
            ):
                numbers[rows] = new.double().nan_to_num(nan=inf, posinf=inf)
        self.of_clients[0][rows] = accepted.double()
        counted = accepted.nonzero()[:, 0]
        return part.map(lambda x: x[counted]), counted

    def accepted(self) -> Tensor:
        """Return the mask of clients whose records are averaged, (c,) bool. Raises InputError if it selects none."""
        accepted = self.of_clients[0] > 0
        if self._guard is not None and not bool(accepted.any()):
            sent = self.of_clients[2]
            raise InputError(
                f"round {self._ctx.t}: the guard refused all {len(accepted)} clients, whose norms are "
                f"{float(sent.min()):.3g} to {float(sent.max()):.3g}, and at most {self._guard.bound:.3g} is allowed; "
                "allow more, or set guard.action = 'clip'"
            )
        return accepted

    def next_guard(self) -> GuardState | None:
        """Return the guard for the next round."""
        if self._guard is None:
            return None
        return self._guard.updated(self.of_clients[3][self.of_clients[0] > 0].tolist())

    def metrics(self) -> dict[str, float]:
        """Return the numbers of attackers, of clipped clients and of refused clients in the round, by name."""
        numbers = {"attackers": float(self.attackers)} if self._attackers is not None else {}
        if self._guard is not None:
            accepted, clipped = (float(x.sum()) for x in self.of_clients[:2])
            numbers |= {"clipped": clipped, "refused": len(self.of_clients[0]) - accepted}
        return numbers

    def _attacked(self, clients: Index, part: ChunkResult) -> Any:
        """Replace the records of the attackers in a chunk by what the server receives from their attack."""
        assert self._attackers is not None  # noqa: S101 (for the type checker)
        bad, received = self._attackers.among(clients), part.received
        if self._attackers.collude and len(bad) < len(clients):
            honest = torch.from_numpy(np.setdiff1d(np.arange(len(clients)), bad)).to(part.steps.device)
            self._known.add(self._attackers.message(received).map(lambda x: x[honest]))
        if not len(bad):
            return received
        rows = torch.from_numpy(bad).to(part.steps.device)
        computed = received.map(lambda x: x[rows])
        up = self._attackers.sent(computed, self._ctx.t, clients[bad], self._known)
        ctx = replace(self._ctx, steps=part.steps[rows], lr_sum=part.lr_factors[rows] * self._ctx.lr)
        sent = self._method.receive(up, ctx)
        return received.map(lambda x, new: x.index_copy(0, rows, new.to(x.dtype)), sent)


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, and the inputs of their training."""

    clients: Index  # (c,), most local steps first
    weights: Tensor  # of the clients in the mean, (c, 1)
    down: Any  # the server's message
    ctx: Context
    arrivals: Arrivals | None = None  # attacks and a guard on the clients' records; None without both


@dataclass(frozen=True)
class CohortResult:
    """The result of training a cohort, for the server."""

    cohort: Cohort
    mean: RunningMean  # the weighted mean of the records that the server receives, and of the local steps
    drifts: Tensor  # ||w_i - w^t|| of each client, (c,)
    loss: float  # the weighted mean of the clients' training losses
    gradients: int  # minibatch gradients of all clients together


class Trainer(Protocol):
    """Trains the chunks of a cohort, in this process or in other processes."""

    @property
    def executor(self) -> Executor:
        """The executor that runs the clients."""

    @property
    def at_once(self) -> int:
        """The number of chunks that are trained at the same time."""

    def parts(self, tasks: Iterator[ChunkInput], down: Any, ctx: Context, chunks: int) -> Generator[ChunkResult]:
        """Yield the result of each of `chunks` tasks, in order; a result is valid until the next one is requested."""


@dataclass(frozen=True)
class InProcess:
    """Trains one chunk after another in this process; `observer` sees every local step."""

    executor: Executor
    observer: RoundObserver | None = None
    at_once = 1

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
    chunks = [x for some in groups if len(some) for x in _split(some, executor.chunk, trainer.at_once)]
    gradients = 0
    down = cohort.down.map(lambda x: aligned(x.to(cohort.down.w.dtype)))
    tasks = _tasks(store, [clients[places] for places in chunks], down)
    on_device = to_device(torch.from_numpy(np.concatenate(groups)), cohort.weights.device)
    rows_of_chunks = torch.split(on_device, [len(places) for places in chunks])
    with ranks.together(), closing(trainer.parts(tasks, down, cohort.ctx, len(chunks))) as parts:
        for places, rows, part in zip(chunks, rows_of_chunks, parts, strict=True):
            drifts[rows], losses[rows] = part.drifts, part.losses
            gradients += part.gradients
            trained, weights, counted = clients[places], cohort.weights[rows], part
            if screening is not None:
                counted, accepted = screening.take(trained, rows, part)
                trained, weights = trained[accepted.cpu().numpy()], weights[accepted]
            if len(trained):
                mean.add(counted.received, counted.steps, weights, counted.lr_factors)
            if len(trained) and keep:
                store.stage(trained, counted.record)
    ranks.add_up(mean, drifts, losses, *(() if screening is None else screening.of_clients))
    return _result(cohort, mean, drifts, losses, ranks.total(gradients))


def _split(places: Index, most: int, at_once: int) -> list[Index]:
    """Split `places` into chunks of at most `most`, of sizes as equal as possible, `at_once` or a multiple of them."""
    number = -(-len(places) // most)
    return np.array_split(places, min(len(places), -(-number // at_once) * at_once))


def _result(cohort: Cohort, mean: RunningMean, drifts: Tensor, losses: Tensor, gradients: int) -> CohortResult:
    """Return the result from the drifts and losses of all clients (c,); leave out refused clients."""
    weights = cohort.weights
    if cohort.arrivals is not None:
        accepted = cohort.arrivals.accepted()
        drifts, losses, weights = drifts[accepted], losses[accepted], weights[accepted]
    loss = float((losses * weights[:, 0]).sum() / weights.sum())
    return CohortResult(cohort, mean, drifts, loss, gradients)


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

    Inputs and results are aligned in memory as if they were sent between processes, because rounding may depend on the
    alignment. Raises NonFiniteError if a client's model or message is not finite.
    """
    method = executor.method
    with method_errors_named(method):  # here, because a worker's error has no traceback
        result = executor.train(task.clients, task.record, down, ctx, observer)
        at_client = replace(ctx, steps=result.steps, lr_sum=result.lr_factors * ctx.lr)
        received = check_record(method, "receive", method.receive(result.up, at_client), method.mean)
    numbers = result.steps, result.lr_factors, drift(sent_part(method, result.w), down.w), result.loss
    part = ChunkResult(received, result.client, *numbers, result.gradients)
    return part.map(lambda x: aligned(x.to(down.w.dtype)))
