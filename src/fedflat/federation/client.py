"""A client of a real federation: the method's local part on its own samples, in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.method import Method
from ..core.model_check import check_tokens, randomness_of
from ..core.native_libraries import fix_product_rounding
from ..core.objective import Objective
from ..core.task import CROSS_ENTROPY, task_of
from ..data.federated import FederatedData
from ..metrics.accuracy import drift
from ..rounds.aggregation import Weights
from ..rounds.batches import Batches
from ..rounds.device import aligned, one_thread
from ..rounds.exact_sum import ExactSum
from ..rounds.executor import Sequential
from ..rounds.guard import Guard, GuardState
from ..rounds.local_training import Client, ContextFactory
from ..rounds.participation import Participation
from .client_state import ClientState
from .messages import RefusedError, TrainReply, TrainRequest, pack, unpack
from .secure_sum.messages import KeysRequest
from .secure_sum.summand import summand
from .update_aggregator import ExpectedReply, UpdateAggregator


class FederatedClient:
    """Trains on request as the simulator would train this client: the same loop, batches and bits."""

    def __init__(
        self,
        method: Method,
        module: nn.Module,
        data: FederatedData,
        client: Client,
        seed: int,
        folder: Path,
        digest: str,
        bf16: bool = False,
        participation: Participation | None = None,
        rounds: int = 0,
    ) -> None:
        """Raise InputError for data whose labels are not classes.

        data: one client's, with its number in the federation (`FederatedData.alone`). folder: keeps its records.
        digest: of the study. bf16: whether gradients are bfloat16. participation: names stragglers. rounds: planned,
        for a method that depends on their number.
        """
        fix_product_rounding()
        method.check_rounds(rounds)
        self._method, self._digest = method.fitted(data.shape), digest
        self._objective = Objective(module, bf16=bf16, task=task_of(CROSS_ENTROPY.loss, data.task))
        like = self._objective.space.flatten(module)
        self._data = data.to(like.device, like.dtype)
        check_tokens(module, self._data.x)
        randomness = randomness_of(module, self._data.inputs(torch.arange(min(4, len(data.y)))), data.classes)
        batches = Batches(self._data, client, seed, like.dtype, participation)
        self._executor = Sequential(self._method, self._objective, batches, seed, randomness)
        self._state = ClientState(folder, method.client)
        self._like, self._contexts = (
            like,
            ContextFactory(self._method, self._objective.space, client, rounds, like.device),
        )

    def train(self, request: TrainRequest) -> TrainReply:
        """Train in the round that the server asks for.

        Raises RefusedError for a request that does not fit, NonFiniteError if training diverges, and InputError if the
        client's record cannot be read or written.
        """
        self._check(request)
        widths = self._method.down.widths(self._like.shape[-1], self._method)
        message = unpack(self._method.down, widths, self._like.dtype, request.down)
        down: Any = message.map(lambda x: aligned(x.to(self._like.device)))  # (width,), aligned as in one process
        initial = self._method.init_client(down.map(lambda x: x[None])).map(lambda x: x[0])
        record = self._state.load(request.since, initial).map(lambda x: aligned(x.to(self._like.dtype)[None]))
        ctx = self._contexts.of(request.t, request.share, request.sampled)
        with one_thread(self._like.device):
            result = self._executor.train(np.array([self._data.first]), record, down, ctx)
        self._state.save(request.t, result.client.map(lambda x: x[0]), {request.since, *request.safe})
        return TrainReply(
            t=request.t,
            samples=len(self._data.y),
            steps=int(result.steps),
            gradients=result.gradients,
            drift=float(drift(result.w, down.w)),
            up=pack(result.up.map(lambda x: x[0].to(down.w.dtype))),
        )

    def summand(
        self, request: KeysRequest, guard: Guard | None, weights: Weights
    ) -> tuple[TrainReply, dict[str, ExactSum]]:
        """Train; return the reply and the sums that the server would add for it, clipped to the bound of `guard`.

        weights: of clients in the mean. Raises what `train` does, and RefusedError for a weight that cannot be its own.
        """
        _check_weight(request.weight, len(self._data.y), guard, weights)
        reply = self.train(request)
        expected = {"": ExpectedReply(reply.samples, reply.steps, reply.gradients, request.weight)}
        ctx = self._contexts.of(request.t, request.share, request.sampled)
        bounds = GuardState.new(guard, self._method, self._like)
        aggregator = UpdateAggregator(self._method, self._like, ctx, expected, bounds)
        with one_thread(self._like.device):
            aggregator.add("", reply)
        for reason in aggregator.missing.values():
            raise RefusedError(reason)
        return reply, summand(aggregator.mean, aggregator.metrics())

    def _check(self, request: TrainRequest) -> None:
        """Raise RefusedError unless the request is for this study and this client."""
        expected = {"study": (request.digest, self._digest), "client": (request.number, self._data.first)}
        for what, (found, mine) in expected.items():
            if found != mine:
                raise RefusedError(f"the order is for {what} {found}, this is {what} {mine}")


def _check_weight(weight: float, samples: int, guard: Guard | None, weights: Weights) -> None:
    """Raise RefusedError for a weight that a client with `samples` cannot have: a low one would expose the others."""
    highest = 1 if weights == "uniform" else samples
    limited = guard is not None and guard.max_weight is not None  # by the median, unknown here
    if not (1 if limited else highest) <= weight <= highest:
        raise RefusedError(f"the weight is {weight}, which is not that of {samples} samples, weights = {weights!r}")
