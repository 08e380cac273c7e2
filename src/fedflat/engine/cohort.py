"""Local training of the clients of one round, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.local import LocalResult
from ..core.method import Context
from ..core.records import Record
from ..data.federated import Index
from ..metrics.drift import drift
from .aggregate import RunningMean
from .batches import Work
from .executors import Executor
from .rehearsal import WatchedExecutor
from .store import ClientStore


class NonFiniteError(ArithmeticError):
    """Training produced NaN or infinity; the message names round and client."""


@dataclass(frozen=True)
class Trained:
    """What a cohort's training gives the server, and what its clients will keep."""

    mean: Any  # the weighted mean of what the server receives
    steps: Tensor | float  # the weighted mean of local steps, (1,)
    kept: list[tuple[Index, Record]]  # clients and their records, chunk by chunk
    drifts: Tensor  # ||w_i - w^t|| of each client, (c,)


def train(
    executor: Executor | WatchedExecutor, store: ClientStore, clients: Index, shares: Tensor, down: Any, ctx: Context
) -> Trained:
    """Train `clients`, longest work first, with their aggregation weights `shares` (c, 1).

    The store is read and not written, so that a round that does not end leaves no trace. Raises
    NonFiniteError if a client's model or message is not finite.
    """
    mean, kept, drifts = RunningMean(executor.method.mean, len(clients)), [], []
    for start in range(0, len(clients), executor.chunk):
        here = slice(start, start + executor.chunk)
        work = executor.batches.plan(ctx.t, clients[here])
        result = _run(executor, store, work, down, ctx)
        at_client = replace(ctx, steps=result.steps, lr_sum=result.steps * ctx.lr)
        mean.add(executor.method.receive(result.up, at_client), result.steps, shares[here])
        kept.append((clients[here], result.client))
        drifts.append(drift(result.w, down.w))
    return Trained(mean.value(), mean.steps, kept, torch.cat(drifts))


def _run(executor: Executor | WatchedExecutor, store: ClientStore, work: Work, down: Any, ctx: Context) -> LocalResult:
    """Local training of some clients, whose records come from the store."""
    stacked = down.map(lambda x: x.expand(len(work.clients), -1))
    client = store.get(work.clients, stacked)
    result = executor.run(work, stacked, client, ctx, executor.batches.client.descent(ctx.t))
    sent = (result.w, *result.up.tensors().values())
    finite = torch.stack([torch.isfinite(x).all(-1) for x in sent]).all(0)
    if not finite.all():
        culprit = int(work.clients[int(torch.nonzero(~finite)[0])])
        raise NonFiniteError(
            f"training diverged: client {culprit} sent NaN or infinity in round {ctx.t}; "
            "lower client.lr or set client.max_norm"
        )
    return result
