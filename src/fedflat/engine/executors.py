"""Ways to run the local training of a cohort: one client after another, or many at once.

Both call the one local loop of the core; they differ in how many clients a tensor holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.local import Descent, LocalResult, local_round
from ..core.method import Context, Method
from ..core.objective import Batch, BatchOracle, Objective
from ..core.oracle import Oracle
from ..core.records import Record
from ..core.trial import Draws
from ..data.federated import Index
from .batches import Batches, Work
from .randomness import Purpose, words

NUMBERS_AT_ONCE = 2_000_000  # parameters, or numbers in a batch, that the stacked executor holds in one tensor


@dataclass
class Executor(ABC):
    """Runs the clients of a `Work`, and counts the minibatch gradients that they take."""

    method: Method
    objective: Objective
    batches: Batches
    seed: int
    draws: Draws  # what the model draws at random in training
    gradients: int = field(default=0, init=False)  # minibatch gradients so far, one per client and call

    @property
    @abstractmethod
    def chunk(self) -> int:
        """The most clients given to `run` at once."""

    @abstractmethod
    def run(self, work: Work, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        """Local training of the clients of `work`; `down`, `client` and the result are stacked, (c, width)."""

    def _oracle(self, samples: Tensor, work: Work, rows: int, k: int) -> BatchOracle:
        """The oracle of the batch of `samples` at step `k`, for the leading `rows` clients of `work`."""

        @contextmanager
        def around() -> Iterator[None]:
            self.gradients += rows
            with self._seeded(samples.device, work, k + 1):
                yield

        clients = work.clients[:rows] if samples.ndim > 1 else work.clients[0]
        batch = self.batches.batch(samples, work.t, clients, k)
        return BatchOracle(self.objective, self._keyed(batch, work.t, clients, k + 1), around)

    def _keyed(self, batch: Batch, t: int, clients: Index, *counters: int) -> Batch:
        """`batch` with the keys of its dropout masks: the same at every gradient of a step, whatever ran before."""
        if self.draws is not Draws.DROPOUT:
            return batch
        keys = np.asarray(words(self.seed, Purpose.DROPOUT, t, clients, *counters)).view(np.int64)
        return replace(batch, key=torch.from_numpy(keys).to(batch.y.device))

    def _seeded(self, device: torch.device, work: Work, *counters: int) -> AbstractContextManager[None]:
        """Nothing to seed, unless a subclass runs models that draw other random numbers than dropout's."""
        return nullcontext()

    def _full(self, work: Work) -> Oracle:
        """The gradient on all samples of each client, batch by batch; counts the batches."""

        def full(w: Tensor) -> Tensor:
            self.gradients += int(self.batches.client.batches_per_epoch(self.batches.data.sizes[work.clients]).sum())
            total = torch.zeros_like(w)
            clients = work.clients if w.ndim > 1 else work.clients[0]
            for number, batch in enumerate(self.batches.everything(work.clients, stacked=w.ndim > 1)):
                with self._seeded(w.device, work, 0, number):
                    total = total + self.objective.gradient(w, self._keyed(batch, work.t, clients, 0, number))
            return total

        return full


class Sequential(Executor):
    """The reference: one client after another, on tensors without a client axis."""

    chunk = 1

    def run(self, work: Work, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        results = [self._one(work, row, down, client, ctx, descent) for row in range(len(work.clients))]
        return LocalResult(
            up=_stack([r.up for r in results]),
            client=_stack([r.client for r in results]),
            w=torch.stack([r.w for r in results]),
            steps=torch.stack([r.steps for r in results]),
        )

    def _one(self, work: Work, row: int, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        my_down, mine = (record.map(lambda x: x[row]) for record in (down, client))
        work = work.single(row)
        ctx = replace(ctx, full_grad=self._full(work))
        return local_round(self.method, my_down, mine, self._steps(work), ctx, descent)

    def _steps(self, work: Work) -> Iterator[tuple[Oracle, int]]:
        for k, samples in enumerate(work.samples[0]):
            yield self._oracle(samples[samples >= 0], work, 1, k), 1

    @contextmanager
    def _seeded(self, device: torch.device, work: Work, *counters: int) -> Iterator[None]:
        """The same random numbers at every gradient of a step, whatever ran before."""
        if self.draws is not Draws.OTHER:
            yield
            return
        seed = int(words(self.seed, Purpose.DROPOUT, work.t, work.clients[0], *counters))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed >> 1)
            yield


class Stacked(Executor):
    """Many clients at once: their models are the rows of one tensor. Clients that are done leave the stack."""

    @property
    def chunk(self) -> int:
        data, size = self.batches.data, self.batches.client.batch_size
        samples = min(size or data.sizes.max(), data.sizes.max()) * data.x[0].numel()
        return int(max(1, NUMBERS_AT_ONCE // max(self.objective.space.d, samples)))

    def run(self, work: Work, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        return local_round(
            self.method, down, client, self._steps(work), replace(ctx, full_grad=self._full(work)), descent
        )

    def _steps(self, work: Work) -> Iterator[tuple[Oracle, int]]:
        for k in range(int(work.steps[0])):
            active = work.active(k)
            yield self._oracle(work.samples[:active, k], work, active, k), active


EXECUTORS = {"sequential": Sequential, "stacked": Stacked}


def choose(name: str, objective: Objective, draws: Draws) -> type[Executor]:
    """The executor called `name`; `auto` stacks small models without convolutions that draw nothing but dropout.

    Stacked convolutions become grouped ones, which are slower than one client after another.
    Raises InputError for an unknown name, or for stacking a model that draws other random numbers: they come
    from one generator, which cannot be seeded for each client of a stack.
    """
    if name == "stacked" and draws is Draws.OTHER:
        raise InputError("executor = 'stacked' cannot run a model that draws random numbers other than dropout")
    if name in EXECUTORS:
        return EXECUTORS[name]
    if name != "auto":
        raise InputError(f"executor = {name!r} is unknown; known are auto, {', '.join(EXECUTORS)}")
    convolutional = any(isinstance(m, nn.modules.conv._ConvNd) for m in objective.module.modules())
    small = objective.space.d <= 300_000
    return Stacked if small and not convolutional and draws is not Draws.OTHER else Sequential


def _stack(records: list[Record]) -> Record:
    return records[0].map(lambda *rows: torch.stack(rows), *records[1:])
