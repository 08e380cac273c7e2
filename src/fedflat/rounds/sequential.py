"""One client after another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..core.local import Descent, LocalResult, StepFunction, local_round
from ..core.method import Context
from ..core.model_check import Randomness
from ..core.oracle import Oracle
from .batches import BatchPlan
from .executor import Executor
from .randomness import Purpose, words


class Sequential(Executor):
    """The reference: one client after another, on tensors without a client axis."""

    chunk = 1

    def run(
        self, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        results = [
            self._run_client(
                plan.single(row), down.map(itemgetter(row)), client.map(itemgetter(row)), ctx, descent, step
            )
            for row in range(len(plan.clients))
        ]
        return LocalResult(
            up=results[0].up.map(_stack, *(r.up for r in results[1:])),
            client=results[0].client.map(_stack, *(r.client for r in results[1:])),
            w=torch.stack([r.w for r in results]),
            steps=torch.stack([r.steps for r in results]),
            lr_factors=torch.stack([r.lr_factors for r in results]),
            gradients=sum(r.gradients for r in results),
            loss=torch.stack([r.loss for r in results]),
        )

    def _run_client(
        self, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        """The round of the one client in `plan`, on tensors (width,)."""
        return self._with_work(
            plan, ctx, lambda ctx: local_round(self.method, down, client, self._steps(plan), ctx, descent, step)
        )

    def _local_steps(self, plan: BatchPlan) -> Tensor:
        return super()._local_steps(plan)[0]

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        for k, count in enumerate(plan.counts[0]):
            yield self._oracle(plan.samples[0, k, :count], plan, 1, k), 1

    @contextmanager
    def _seeded(self, device: torch.device, plan: BatchPlan, *counters: int) -> Iterator[None]:
        """The same random numbers at every gradient of a step, whatever ran before."""
        if self.randomness in (Randomness.NOTHING, Randomness.DROPOUT):
            yield
            return
        seed = int(words(self.seed, Purpose.DROPOUT, plan.t, plan.clients[0], *counters))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed >> 1)
            yield


def _stack(*rows: Tensor) -> Tensor:
    return torch.stack(rows)
