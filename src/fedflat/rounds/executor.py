"""What runs the local training of a cohort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import NonFiniteError
from ..core.local import Descent, LocalResult
from ..core.method import Context, Method
from ..core.model_check import Randomness
from ..core.objective import Batch, BatchOracle, Objective
from ..core.oracle import Oracle
from ..data.federated import Index
from .batches import Batches, BatchPlan
from .randomness import Purpose, words


@dataclass
class Executor(ABC):
    """Runs the clients of a `BatchPlan`, and counts the minibatch gradients that they take."""

    method: Method
    objective: Objective
    batches: Batches
    seed: int
    draws: Randomness  # what the model draws at random in training
    gradients: int = field(default=0, init=False)  # minibatch gradients so far, one per client and call

    @property
    @abstractmethod
    def chunk(self) -> int:
        """The most clients given to `run` at once."""

    @abstractmethod
    def run(self, work: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        """Local training of the clients of `work`; `down`, `client` and the result are stacked, (c, width)."""

    def _oracle(self, samples: Tensor, work: BatchPlan, rows: int, k: int, full: bool = True) -> BatchOracle:
        """The oracle of the batch of `samples` at step `k`, for the leading `rows` clients of `work`.

        `full`: no sample is missing; see `Batches.batch`.
        """

        @contextmanager
        def around() -> Iterator[None]:
            self.gradients += rows
            with self._seeded(samples.device, work, k + 1):
                yield

        clients = work.clients[:rows] if samples.ndim > 1 else work.clients[0]
        batch = self.batches.batch(samples, work.t, clients, k, full)
        return BatchOracle(self.objective, self._keyed(batch, work.t, clients, k + 1), around)

    def _keyed(self, batch: Batch, t: int, clients: Index, *counters: int) -> Batch:
        """`batch` with the keys of its dropout masks: the same at every gradient of a step, whatever ran before."""
        if self.draws is not Randomness.DROPOUT:
            return batch
        keys = np.asarray(words(self.seed, Purpose.DROPOUT, t, clients, *counters)).view(np.int64)
        return replace(batch, key=torch.from_numpy(keys).to(batch.y.device))

    def _seeded(self, device: torch.device, work: BatchPlan, *counters: int) -> AbstractContextManager[None]:
        """Nothing to seed, unless a subclass runs models that draw other random numbers than dropout's."""
        return nullcontext()

    def _full(self, work: BatchPlan) -> Oracle:
        """The gradient on all samples of each client, batch by batch; counts the batches."""

        def full(w: Tensor) -> Tensor:
            self.gradients += int(self.batches.client.batches_per_epoch(self.batches.data.sizes_of(work.clients)).sum())
            total = torch.zeros_like(w)
            clients = work.clients if w.ndim > 1 else work.clients[0]
            for number, batch in enumerate(self.batches.everything(work.clients, stacked=w.ndim > 1)):
                with self._seeded(w.device, work, 0, number):
                    total = total + self.objective.gradient(w, self._keyed(batch, work.t, clients, 0, number))
            return total

        return full


@dataclass(frozen=True)
class Task:
    """A chunk of the cohort, with what its clients kept until now."""

    clients: Index  # (c,) longest work first
    record: Any  # (c, width)


def local_training(executor: Any, task: Task, down: Any, ctx: Context) -> LocalResult:
    """What the clients of `task` end the round with. Raises NonFiniteError if a model or message is not finite."""
    work = executor.batches.plan(ctx.t, task.clients)
    descent = executor.batches.client.descent(ctx.t)
    result: LocalResult = executor.run(work, stacked(down, task.clients), task.record, ctx, descent)
    _check_finite(result, task.clients, ctx.t)
    return result


def stacked(down: Any, clients: Index) -> Any:
    """The server's message for each of `clients`, (c, width)."""
    return down.map(lambda x: x.expand(len(clients), -1))


def _check_finite(result: LocalResult, clients: Index, t: int) -> None:
    sent = (result.w, *result.up.tensors().values())
    finite = torch.stack([torch.isfinite(x).all(-1) for x in sent]).all(0)
    if not finite.all():
        culprit = int(clients[int(torch.nonzero(~finite)[0])])
        raise NonFiniteError(
            f"training diverged: client {culprit} sent NaN or infinity in round {t}; "
            "lower client.lr or set client.max_norm"
        )
