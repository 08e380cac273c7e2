"""One client after another on a GPU, with every local step replayed from one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from ...core.oracle import Oracle
from ...rounds.batches import BatchPlan
from ...rounds.executor import Sequential
from .prepared import PreparedStep, Run, StepInputs, TensorStep

WARM_UP = 3  # steps before the recording, as torch advises: libraries choose their kernels and set up in the first


class GraphedStep(PreparedStep):
    """Records a step as a CUDA graph once and replays it for every step and client: one launch instead of hundreds.

    Inputs are copied into the recording's own tensors, results out of them. Where no graph can be recorded, steps are
    taken as they are.
    """

    participle = "recorded as a CUDA graph"

    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """Return everything: a recording fits one form alone."""
        return tuple((name, x.shape, x.dtype) for name, x in tensors.items())

    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """Record the step."""
        places = [x.clone() for x in inputs.tensors().values()]
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                step(*places)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step(*places)

        def run(values: list[Tensor]) -> list[Tensor]:
            for place, x in zip(places, values, strict=True):
                place.copy_(x)
            graph.replay()
            return [x.clone() for x in results]

        return run


class Graphed(Sequential):
    """One client after another, each step replayed; batches are all of one size, with weights, for one recording."""

    @cached_property
    def step(self) -> GraphedStep:
        """What takes the local steps."""
        return GraphedStep(self.method, self.objective)

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        size = self.batches.size
        samples = functional.pad(plan.samples[0], (0, size - plan.samples.shape[-1]), value=-1)
        for k in range(int(plan.steps[0])):
            yield self._oracle(samples[k], plan, 1, k, full=False), 1
