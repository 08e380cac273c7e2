"""Some steps on trial, to see what they take."""

from __future__ import annotations

import torch
from torch import Tensor

from ...data.federated import Index
from ...rounds.context import ContextFactory
from ...rounds.executor import Executor

STEPS = 2
SOME = 8  # clients whose bits are compared


class Trial:
    """The first steps of the clients that have the most, as many as are run at once, from the first model."""

    def __init__(self, executor: Executor, cohort: Index) -> None:
        """Everything is prepared, so that `run` is nothing but local training; `cohort` is (c,)."""
        batches, method, space = executor.batches, executor.method, executor.objective.space
        self.plan = batches.plan(0, batches.longest_first(cohort)[: executor.chunk]).first(STEPS)
        server = method.init_server(space.flatten(executor.objective.module))
        self._executor, self._descent = executor, batches.client.descent(0)
        self._down = method.broadcast(server).map(lambda x: x.expand(len(self.plan.clients), -1))
        self._client = method.init_client(self._down)
        self._ctx = ContextFactory(space, batches.client, server.w.device).of(0, 1.0, len(self.plan.clients))

    def run(self) -> Tensor:
        """Take the steps; the models that they lead to, (c, d)."""
        executor = self._executor
        result = executor.run(self.plan, self._down, self._client, self._ctx, self._descent, executor.step)
        return result.w


def stands_alone(executor: Executor, cohort: Index) -> bool:
    """Whether a client's training has the same bits whoever is beside it in a stack, tried out on some of `cohort`.

    It depends on the functions in a model: torch computes the last few numbers of a tensor by other code than the rest,
    and a single product by other code than several, and not all of that rounds alike.
    """
    clients = executor.batches.longest_first(cohort)[: min(executor.chunk, SOME)]
    together = Trial(executor, clients).run()
    for some in (slice(0, 1), slice(1, None), slice(0, None, 2), slice(1, None, 2), slice(2, 5)):
        if len(clients[some]) and not torch.equal(Trial(executor, clients[some]).run(), together[some]):
            return False
    return True
