"""Some steps on trial, to see what they take."""

from __future__ import annotations

from ...core.method import Context
from ...data.federated import Index
from ..batches import Work
from .base import Executor

STEPS = 2


def first_steps(executor: Executor, cohort: Index) -> Work:
    """The first steps of the clients of `cohort` (c,) that have the most, as many clients as are run at once."""
    return executor.batches.plan(0, executor.batches.longest_first(cohort)[: executor.chunk]).first(STEPS)


def try_out(executor: Executor, work: Work) -> None:
    """The steps of `work` from the first model, thrown away."""
    method, objective = executor.method, executor.objective
    server = method.init_server(objective.space.flatten(objective.module))
    down = method.broadcast(server).map(lambda x: x.expand(len(work.clients), -1))
    descent = executor.batches.client.descent(0)
    layers = tuple(layer for _, layer in objective.space.layers())
    is_weight = objective.space.is_weight(server.w.device)
    ctx = Context(0, float(descent.lr), 1.0, is_weight=is_weight, layers=layers, sampled=len(work.clients))
    executor.run(work, down, method.init_client(down), ctx, descent)
    executor.gradients = 0  # a trial is not part of the run
