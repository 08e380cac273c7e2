"""Many clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from ...adapters import adapted_network
from ...core.local import Descent, LocalResult, StepFunction, local_round
from ...core.method import Context
from ...core.objective import Batch
from ...core.oracle import Oracle
from ...metrics.flatness.passes import Footprint
from ...rounds.batches import BatchPlan
from ...rounds.executor import Executor
from .compiled import CompiledStep


class Stacked(Executor):
    """Many clients at once: their models are the rows of one tensor. Clients that are done leave the stack."""

    numbers_at_once = 2_000_000  # parameters, or numbers in a batch, in one tensor
    # Of activations by estimate, where models have adapters. On the CPU larger stacks of transformers are not faster.
    bytes_at_once, bytes_on_gpu = 2**25, 2**30

    @cached_property
    def chunk(self) -> int:
        data = self.batches.data
        samples = self.batches.size * data.x[0].numel()
        most = int(max(1, self.numbers_at_once // max(self.objective.space.d, samples)))
        return most if adapted_network(self.objective.module) is None else max(1, min(most, self._most_in_memory()))

    def _most_in_memory(self) -> int:
        """How many clients' activations the memory holds.

        Without adapters the parameters bound the stack; an adapter is small beside what its model computes.
        """
        data = self.batches.data
        most = self.bytes_at_once if data.y.device.type == "cpu" else self.bytes_on_gpu
        one = Batch(data.inputs(torch.zeros(1, dtype=torch.int64, device=data.y.device)), data.y[:1])
        with self.objective.evaluating():
            return int(most // (self.batches.size * Footprint(self.objective, one).gradient))

    def run(
        self, plan: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent, step: StepFunction
    ) -> LocalResult:
        return self._with_work(
            plan, ctx, lambda ctx: local_round(self.method, down, client, self._steps(plan), ctx, descent, step)
        )

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        for k, active in enumerate(plan.active()):
            yield self._oracle(plan.samples[:active, k], plan, active, k, self.batches.always_full), active


class Compiled(Stacked):
    """Many clients at once, with the local step compiled as a whole; see `CompiledStep`.

    A call costs less than without compiling, so fewer clients will do; a step's vectors then stay near the processor.
    """

    numbers_at_once = 1_000_000

    @cached_property
    def chunk(self) -> int:
        """At least two: a single client is not compiled."""
        return max(2, super().chunk)

    @cached_property
    def step(self) -> CompiledStep:
        """What takes the local steps."""
        return CompiledStep(self.method, self.objective)
