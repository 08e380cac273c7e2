"""Some steps on trial, to see what they take."""

from __future__ import annotations

from ...core.method import Context
from ...data.federated import Index
from .base import Executor

STEPS = 2


class Trial:
    """The first steps of the clients that have the most, as many as are run at once, from the first model."""

    def __init__(self, executor: Executor, cohort: Index) -> None:
        """Everything is prepared, so that `run` is nothing but local training; `cohort` is (c,)."""
        batches, method, space = executor.batches, executor.method, executor.objective.space
        self.work = batches.plan(0, batches.longest_first(cohort)[: executor.chunk]).first(STEPS)
        server = method.init_server(space.flatten(executor.objective.module))
        self._executor, self._descent = executor, batches.client.descent(0)
        self._down = method.broadcast(server).map(lambda x: x.expand(len(self.work.clients), -1))
        self._client = method.init_client(self._down)
        self._ctx = Context(
            0,
            float(self._descent.lr),
            1.0,
            is_weight=space.is_weight(server.w.device),
            layers=tuple(layer for _, layer in space.layers()),
            sampled=len(self.work.clients),
        )

    def run(self) -> None:
        """Take the steps and throw them away."""
        self._executor.run(self.work, self._down, self._client, self._ctx, self._descent)
        self._executor.gradients = 0  # a trial is not part of the run
