"""Federations within one process whose records are summed under masks; clients may drop out, or lie, at any step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.federation.client import FederatedClient
from fedflat.federation.messages import Failure, RefusedError
from fedflat.federation.secure_sum.client import SumClient
from fedflat.federation.secure_sum.messages import KeysRequest
from fedflat.federation.server import FederatedServer, RoundTerms
from fedflat.rounds.aggregation import Weights
from support.transports import DIGEST, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, lr_decay=0.95, epochs=2, batch_size=4)
SHARE = 0.6  # four of six
Change = Callable[[str, Any, Any], Any]


class SummingTransport:
    """Calls clients directly, in a shuffled order. `change` (client, request, reply) may change a reply or drop it."""

    def __init__(
        self, clients: Mapping[str, FederatedClient], folder: Path, guard: ff.Guard | None = None,
        change: Change = lambda client, request, reply: reply, weights: Weights = "uniform", unmask_again: int = 0,
    ) -> None:  # fmt: skip
        self.clients, self.guard, self.change, self.weights = dict(clients), guard, change, weights
        self.summing = {name: SumClient(folder / name / "secure-sum", SHARE, DIGEST, unmask_again) for name in clients}
        self.seen: list[tuple[str, Any, Any]] = []  # all that the server sends and gets

    def exchange(self, requests: Mapping[str, Any], deadline: float) -> Iterator[tuple[str, Any]]:
        shuffled = sorted(requests)
        random.Random(len(self.seen)).shuffle(shuffled)
        for client in shuffled:
            reply = self.change(client, requests[client], self.reply(client, requests[client]))
            self.seen.append((client, requests[client], reply))
            if reply is not None:
                yield client, reply

    def reply(self, client: str, request: Any) -> Any:
        try:
            if not isinstance(request, KeysRequest):
                return self.summing[client].answer(request)
            reply, summand = self.clients[client].summand(request, self.guard, self.weights)
            return self.summing[client].begin(request, reply.samples, reply.steps, summand)
        except RefusedError as error:
            return Failure(str(error))


def summing_federation(
    method: Method, folder: Path, rule: object = 1.0, dtype: torch.dtype = torch.float32, guard: ff.Guard | None = None,
    change: Change = lambda client, request, reply: reply, unmask_again: int = 0, **changes: Any,
) -> tuple[FederatedServer, SummingTransport]:  # fmt: skip
    """A server that sees sums alone, and its transport with all six clients of `federation()`; called again for the
    same folder, both are new processes'."""
    terms = RoundTerms(quorum=0.5, norm_multiple=inf, secure_sum=SHARE)
    server = federated_server(method, CLIENT, rule, dtype, **({"terms": terms, "guard": guard} | changes))
    clients = federated_clients(method, folder, CLIENT, dtype, rule)
    return server, SummingTransport(clients, folder, guard, change, changes.get("weights", "uniform"), unmask_again)


def dropping(step: type[Any], *clients: str, t: int = 0) -> Change:
    """These clients have no reply in one step of round `t`, and have gone for the rest of it."""
    gone: set[str] = set()

    def change(client: str, request: Any, reply: Any) -> Any:
        if request.t == t and client in clients and (type(request) is step or client in gone):
            gone.add(client)
            return None
        return reply

    return change
