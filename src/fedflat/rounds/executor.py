"""The executors of local training: the base class, and the reference, which trains one client after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.accumulation import AccumulatedOracle, in_parts
from ..core.descent import Descent
from ..core.errors import NonFiniteError
from ..core.local import LocalResult, LocalState, StepFunction, local_round, local_step
from ..core.method import Context, Method
from ..core.model_check import Randomness
from ..core.objective import Batch, BatchOracle, Objective
from ..core.oracle import ObservedOracle, Oracle
from ..core.records import is_finite
from ..data.preparation import to_device
from ..data.types import Index
from ..metrics.flatness.subject import RoundObserver
from .batches import Batches, BatchPlan
from .compression import compress
from .randomness import Purpose, seed_torch, words


@dataclass
class Executor(ABC):
    """Runs the local steps of a `BatchPlan`."""

    method: Method
    objective: Objective
    batches: Batches
    seed: int
    randomness: Randomness  # the random numbers that the model draws in training

    @property
    def name(self) -> str:
        """The name in settings."""
        return type(self).__name__.lower()

    @property
    @abstractmethod
    def chunk(self) -> int:
        """The most clients given to `run` at once."""

    @property
    def step(self) -> StepFunction:
        """The function that takes one local step."""
        return local_step

    @abstractmethod
    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        """Yield the oracle of each local step of `plan`, and how many of its clients take the step."""

    def run(
        self, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        """Take all local steps of `plan`; `down`, `client` and the result are stacked, (c, width).

        Every batch of every full gradient counts as a minibatch gradient.
        """
        oracle = ObservedOracle(partial(self._full_gradient, plan))
        ctx = replace(ctx, full_grad=oracle, local_steps=self._local_steps(plan).to(down.w.device))
        result = local_round(self.method, down, client, self._steps(plan), ctx, descent, step)
        batches = int(self.batches.client.batches_per_epoch(self.batches.data.sizes_of(plan.clients)).sum())
        return replace(result, gradients=result.gradients + oracle.calls * batches)

    def train(
        self, clients: Index, record: Any, down: Any, ctx: Context, observer: RoundObserver | None = None
    ) -> LocalResult:
        """Train `clients` (c,), those with the most local steps first, in the round of `ctx`.

        record: the record of each client, (c, width). down: the server's message, (width,). observer: receives every
        local step. Raises NonFiniteError if a client's model or message is not finite.
        """
        plan = self.batches.plan(ctx.t, clients)
        step = self.step if observer is None else partial(local_step, observe=_shown_to(observer, clients))
        result = self.run(plan, stacked(down, clients), record, ctx, self.batches.client.descent(ctx.lr), step)
        if observer is not None:
            observer.done(clients, result.w)
        _check_finite(result, clients, ctx.t)  # of what is compressed, which would hide it
        return compress(result, self.method, self.seed, ctx.t, clients)

    def _oracle(
        self, samples: Tensor, plan: BatchPlan, rows: int, k: int, full: bool = True
    ) -> BatchOracle | AccumulatedOracle:
        """Return the oracle of the batch of `samples` at step `k`, for the leading `rows` clients of `plan`.

        full: whether every client has all samples of the batch, which then need no weights; see `Batches.batch`.
        """
        clients = plan.clients[:rows] if samples.ndim > 1 else plan.clients[0]
        size = self.batches.client.batch_size
        if self.batches.client.accumulate == 1 or size is None:
            return self._part(self.batches.batch(samples, plan.t, clients, k, full), plan, clients, k + 1)
        parts = in_parts(self.batches.batch(samples, plan.t, clients, k, full=False), size)
        counters = ((k + 1, j) if j else (k + 1,) for j in range(len(parts)))
        return AccumulatedOracle(tuple(self._part(part, plan, clients, *at) for part, at in
                                       zip(parts, counters, strict=True)))  # fmt: skip

    def _part(self, batch: Batch, plan: BatchPlan, clients: Index, *counters: int) -> BatchOracle:
        """Return the oracle of a batch whose random numbers depend on `counters`."""
        seeded = partial(self._seeded, batch.y.device, plan, *counters)
        return BatchOracle(self.objective, self._keyed(batch, plan.t, clients, *counters), seeded)

    def _keyed(self, batch: Batch, t: int, clients: Index, *counters: int) -> Batch:
        """Add the keys of dropout masks to `batch`: the same at all gradients of a step, whatever was drawn before."""
        if self.randomness is not Randomness.DROPOUT:
            return batch
        keys = np.asarray(words(self.seed, Purpose.DROPOUT, t, clients, *counters)).view(np.int64)
        return replace(batch, key=to_device(torch.from_numpy(keys), batch.y.device))

    def _seeded(self, device: torch.device, plan: BatchPlan, *counters: int) -> AbstractContextManager[None]:
        """Return an empty context; a subclass seeds models that draw other random numbers than dropout's."""
        return nullcontext()

    def _local_steps(self, plan: BatchPlan) -> Tensor:
        """Return the number of steps of each client of `plan`, (c, 1)."""
        return to_device(torch.from_numpy(plan.steps[:, None]), plan.samples.device, self.batches.dtype)

    def _full_gradient(self, plan: BatchPlan, w: Tensor) -> Tensor:
        """Compute the gradient at `w` (*clients, d) on all samples of each client, batch by batch."""
        total = torch.zeros_like(w)
        clients = plan.clients if w.ndim > 1 else plan.clients[0]
        filled = self.randomness is not Randomness.OF_BATCH
        for number, batch in enumerate(self.batches.everything(plan.clients, w.ndim > 1, filled)):
            with self._seeded(w.device, plan, 0, number):
                total = total + self.objective.gradient(w, self._keyed(batch, plan.t, clients, 0, number))
        return total


def stacked(down: Any, clients: Index) -> Any:
    """Expand the server's message to each of `clients`, (c, width)."""
    return down.map(lambda x: x.expand(len(clients), -1))


def _shown_to(observer: RoundObserver, clients: Index) -> Callable[[LocalState, Tensor | None], None]:
    """Return a callback that passes the models of `clients`, and their perturbations, to `observer`."""

    def observe(state: LocalState, point: Tensor | None) -> None:
        w = state.w.reshape(-1, state.w.shape[-1])
        perturbation = torch.zeros_like(w) if point is None else (point - state.w).reshape(w.shape)
        observer.step(clients[: len(w)], int(state.steps), w, perturbation)

    return observe


def _check_finite(result: LocalResult, clients: Index, t: int) -> None:
    """Raise NonFiniteError, naming the client, if a model or a message has NaN or infinity."""
    sent = (result.w, *result.up.tensors().values())
    finite = torch.stack([is_finite(x) for x in sent]).all(0)
    if not finite.all():
        culprit = int(clients[int(torch.nonzero(~finite)[0])])
        raise NonFiniteError(
            f"training diverged: client {culprit} sent NaN or infinity in round {t}; "
            "lower client.lr or set client.max_norm"
        )


class Sequential(Executor):
    """The reference: one client after another, on tensors without a client axis."""

    chunk = 1

    def run(
        self, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        results = []
        for row in range(len(plan.clients)):
            alone = down.map(itemgetter(row)), client.map(itemgetter(row))
            results.append(super().run(plan.single(row), *alone, ctx, descent, step))
        first, *others = results
        parts: dict[str, Any] = {
            name: getattr(first, name).map(lambda *rows: torch.stack(rows), *(getattr(r, name) for r in others))
            for name in ("up", "client")
        }
        for name in ("w", "steps", "lr_factors", "loss"):
            parts[name] = torch.stack([getattr(r, name) for r in results])
        return LocalResult(gradients=sum(r.gradients for r in results), **parts)

    def _local_steps(self, plan: BatchPlan) -> Tensor:
        return super()._local_steps(plan)[0]

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        for k, count in enumerate(plan.counts[0]):
            yield self._oracle(plan.samples[0, k, :count], plan, 1, k), 1

    @contextmanager
    def _seeded(self, device: torch.device, plan: BatchPlan, *counters: int) -> Iterator[None]:
        """Draw the same random numbers at every gradient of a step, independent of earlier draws."""
        if self.randomness in (Randomness.NOTHING, Randomness.DROPOUT):
            yield
            return
        seed = int(words(self.seed, Purpose.DROPOUT, plan.t, plan.clients[0], *counters))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            seed_torch(seed >> 1)
            yield
