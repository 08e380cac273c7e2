"""One client after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..core.local import Descent, LocalResult, StepFunction, local_round, walk
from ..core.method import Context
from ..core.model_check import Randomness
from ..core.oracle import Oracle
from ..core.records import Record
from .batches import BatchPlan
from .executor import Executor
from .randomness import Purpose, words


class Sequential(Executor):
    """The reference: one client after another, on tensors without a client axis."""

    chunk = 1
    walk: StepFunction = staticmethod(walk)

    def run(self, work: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        results = [self._one(work, row, down, client, ctx, descent) for row in range(len(work.clients))]
        return LocalResult(
            up=_stack([r.up for r in results]),
            client=_stack([r.client for r in results]),
            w=torch.stack([r.w for r in results]),
            steps=torch.stack([r.steps for r in results]),
        )

    def _one(self, work: BatchPlan, row: int, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        my_down, mine = (record.map(lambda x: x[row]) for record in (down, client))
        work = work.single(row)
        ctx = replace(ctx, full_grad=self._full(work))
        return local_round(self.method, my_down, mine, self._steps(work), ctx, descent, self.walk)

    def _steps(self, work: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        for k, count in enumerate(work.counts[0]):
            yield self._oracle(work.samples[0, k, :count], work, 1, k), 1

    @contextmanager
    def _seeded(self, device: torch.device, work: BatchPlan, *counters: int) -> Iterator[None]:
        """The same random numbers at every gradient of a step, whatever ran before."""
        if self.draws is not Randomness.OTHER:
            yield
            return
        seed = int(words(self.seed, Purpose.DROPOUT, work.t, work.clients[0], *counters))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed >> 1)
            yield


def _stack(records: list[Record]) -> Record:
    return records[0].map(lambda *rows: torch.stack(rows), *records[1:])
