"""A client of a real federation: the method's local part on its own samples, in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.method import Method
from ..core.model_check import draws
from ..core.objective import Objective
from ..data.federated import FederatedData
from ..metrics.drift import drift
from ..rounds.batches import Batches
from ..rounds.context import ContextFactory
from ..rounds.executor import Task, local_training
from ..rounds.local_training import Client
from ..rounds.memory_layout import aligned
from ..rounds.sequential import Sequential
from ..rounds.threads import one_thread
from .client_state import ClientState
from .codec import RefusedError, pack, unpack
from .messages import TrainReply, TrainRequest


class FederatedClient:
    """Trains when it is asked to, as the simulator would train this client: the same loop, batches and bits."""

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
    ) -> None:
        """`data` is one client's, with its number in the federation (`FederatedData.alone`); `folder` keeps its
        records; `digest` is that of the study it takes part in; with `bf16` gradients are bfloat16."""
        self._method, self._data, self._digest = method.fitted(data.shape), data, digest
        self._objective = Objective(module, bf16=bf16)
        like = self._objective.space.flatten(module)
        self._data = data.to(like.device, like.dtype)
        drawn = draws(module, self._data.inputs(torch.arange(min(2, len(data.y)))), data.classes)
        batches = Batches(self._data, client, seed, like.dtype)
        self._executor = Sequential(self._method, self._objective, batches, seed, drawn)
        self._memory = ClientState(folder, method.client)
        self._like, self._facts = like, ContextFactory(self._objective.space, client, like.device)

    def train(self, order: TrainRequest) -> TrainReply:
        """Carry out an order.

        Raises RefusedError for one that does not fit, NonFiniteError if training diverges, and InputError if the record
        cannot be read or written.
        """
        self._check(order)
        down = self._down(order)
        with one_thread(self._like.device):
            before = self._executor.gradients
            result = local_training(
                self._executor, self._task(order, down), down, self._facts.of(order.t, order.share, order.sampled)
            )
        self._memory.keep(order.t, result.client.map(lambda x: x[0]), {order.since, *order.safe})
        return TrainReply(
            t=order.t,
            samples=len(self._data.y),
            steps=int(result.steps),
            gradients=self._executor.gradients - before,
            drift=float(drift(result.w, down.w)),
            up=pack(result.up.map(lambda x: x[0].to(down.w.dtype))),
        )

    def _check(self, order: TrainRequest) -> None:
        expected = {"study": self._digest, "client": self._data.first}
        found = {"study": order.digest, "client": order.number}
        for what, value in expected.items():
            if found[what] != value:
                raise RefusedError(f"the order is for {what} {found[what]}, this is {what} {value}")

    def _down(self, order: TrainRequest) -> Any:
        """The server's message (width,), as it lies in the simulator's memory."""
        widths = self._method.down.widths(self._like.shape[-1], self._method)
        down = unpack(self._method.down, widths, self._like.dtype, order.down)
        return down.map(lambda x: aligned(x.to(self._like.device)))

    def _task(self, order: TrainRequest, down: Any) -> Task:
        """This client, with its record as it was when the round began."""
        first = self._method.init_client(down.map(lambda x: x[None])).map(lambda x: x[0])
        record = self._memory.after(order.since, first)
        return Task(np.array([self._data.first]), record.map(lambda x: aligned(x.to(self._like.dtype)[None])))
