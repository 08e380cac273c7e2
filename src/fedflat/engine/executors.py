"""Ways to run the local training of a cohort: one client after another, or many at once.

Both call the one local loop of the core; they differ in how many clients a tensor holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.local import Descent, LocalResult, local_round
from ..core.method import Context, Method
from ..core.objective import Objective
from ..core.oracle import Oracle
from ..core.records import Record
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
    is_random: bool  # the model draws random numbers in training
    gradients: int = field(default=0, init=False)  # minibatch gradients so far, one per client and call

    @property
    @abstractmethod
    def chunk(self) -> int:
        """The most clients given to `run` at once."""

    @abstractmethod
    def run(self, work: Work, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        """Local training of the clients of `work`; `down`, `client` and the result are stacked, (c, width)."""

    def _counted(self, grad: Oracle, clients: int) -> Oracle:
        def counting(w: Tensor) -> Tensor:
            self.gradients += clients
            return grad(w)

        return counting


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
        return local_round(self.method, my_down, mine, self._steps(work.single(row)), ctx, descent)

    def _steps(self, work: Work) -> Iterator[tuple[Oracle, int]]:
        for k, samples in enumerate(work.samples[0]):
            grad = self.objective.at(self.batches.batch(samples[samples >= 0]))
            if self.is_random:
                grad = self._seeded(grad, int(words(self.seed, Purpose.DROPOUT, work.t, work.clients[0], k)))
            yield self._counted(grad, 1), 1

    def _seeded(self, grad: Oracle, seed: int) -> Oracle:
        """The oracle with the same dropout masks at every call of a step, whatever ran before."""

        def seeded(w: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[w.device] if w.is_cuda else []):
                torch.manual_seed(seed >> 1)
                return grad(w)

        return seeded


class Stacked(Executor):
    """Many clients at once: their models are the rows of one tensor. Clients that are done leave the stack."""

    @property
    def chunk(self) -> int:
        data, size = self.batches.data, self.batches.client.batch_size
        samples = min(size or data.sizes.max(), data.sizes.max()) * data.x[0].numel()
        return int(max(1, NUMBERS_AT_ONCE // max(self.objective.space.d, samples)))

    def run(self, work: Work, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        return local_round(self.method, down, client, self._steps(work), ctx, descent)

    def _steps(self, work: Work) -> Iterator[tuple[Oracle, int]]:
        for k in range(int(work.steps[0])):
            active = work.active(k)
            batch = self.batches.batch(work.samples[:active, k])
            yield self._counted(self.objective.at(batch), active), active


EXECUTORS = {"sequential": Sequential, "stacked": Stacked}


def choose(name: str, objective: Objective, is_random: bool) -> type[Executor]:
    """The executor called `name`; `auto` stacks small models without convolutions and without random numbers.

    Stacked convolutions become grouped ones, which are slower than one client after another.
    Raises InputError for an unknown name, or for stacking a model that draws random numbers.
    """
    if name == "stacked" and is_random:
        raise InputError("executor = 'stacked' cannot run a model with dropout, which would differ from 'sequential'")
    if name in EXECUTORS:
        return EXECUTORS[name]
    if name != "auto":
        raise InputError(f"executor = {name!r} is unknown; known are auto, {', '.join(EXECUTORS)}")
    convolutional = any(isinstance(m, nn.modules.conv._ConvNd) for m in objective.module.modules())
    small = objective.space.d <= 300_000
    return Stacked if small and not convolutional and not is_random else Sequential


def _stack(records: list[Record]) -> Record:
    return records[0].map(lambda *rows: torch.stack(rows), *records[1:])
