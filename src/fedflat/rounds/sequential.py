"""One client after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..core.local import Descent, LocalResult, StepFunction, local_round
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

    def run(
        self, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        results = [self._run_row(row, plan, down, client, ctx, descent, step) for row in range(len(plan.clients))]
        return LocalResult(
            up=_stack([r.up for r in results]),
            client=_stack([r.client for r in results]),
            w=torch.stack([r.w for r in results]),
            steps=torch.stack([r.steps for r in results]),
            gradients=sum(r.gradients for r in results),
        )

    def _run_row(
        self, row: int, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        """One client's round, on tensors (width,)."""
        mine, my_down, my_record = plan.single(row), *(record.map(lambda x: x[row]) for record in (down, client))
        return self._with_full_gradient(
            mine, ctx, lambda ctx: local_round(self.method, my_down, my_record, self._steps(mine), ctx, descent, step)
        )

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        for k, count in enumerate(plan.counts[0]):
            yield self._oracle(plan.samples[0, k, :count], plan, 1, k), 1

    @contextmanager
    def _seeded(self, device: torch.device, plan: BatchPlan, *counters: int) -> Iterator[None]:
        """The same random numbers at every gradient of a step, whatever ran before."""
        if self.randomness is not Randomness.OTHER:
            yield
            return
        seed = int(words(self.seed, Purpose.DROPOUT, plan.t, plan.clients[0], *counters))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed >> 1)
            yield


def _stack(records: list[Record]) -> Record:
    return records[0].map(lambda *rows: torch.stack(rows), *records[1:])
