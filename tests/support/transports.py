"""Transports within one process, whose clients may be silent, late or malicious."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import Reply, TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer
from fedflat.rounds.participation import participation
from support.federation import federation, tanh_network

DIGEST = "study"
PLANNED = 5  # rounds, of methods that must know
Change = Callable[[str, TrainReply], Reply | None]


class InProcessTransport:
    """Calls clients directly. Replies come in a shuffled order, each one after `change`, which may drop it."""

    def __init__(self, clients: Mapping[str, FederatedClient], change: Change = lambda client, reply: reply) -> None:
        self.clients, self.change = dict(clients), change

    def exchange(self, requests: Mapping[str, TrainRequest], deadline: float) -> Iterator[tuple[str, Reply]]:
        shuffled = sorted(requests)
        random.Random(len(requests) + sum(request.t for request in requests.values())).shuffle(shuffled)
        for client in shuffled:
            reply = self.change(client, self.clients[client].train(requests[client]))
            if reply is not None:
                yield client, reply


def client_names(data: ff.FederatedData) -> list[str]:
    return [f"clinic-{i:02d}" for i in range(data.clients)]


def federated_clients(
    method: Method,
    folder: Path,
    client: ff.Client,
    dtype=torch.float32,
    rule: object = 3,
    rounds: int = PLANNED,
) -> dict[str, FederatedClient]:
    """All clients of `federation()` by name, each with its own data only, and its own folder."""
    data = federation()
    return {
        name: FederatedClient(
            method, tanh_network().to(dtype), data.alone(i), client, 0, folder / name, DIGEST,
            participation=participation(rule), rounds=rounds,
        )
        for i, name in enumerate(client_names(data))
    }  # fmt: skip


def federated_server(
    method: Method, client: ff.Client, rule: object = 3, dtype=torch.float32, **changes
) -> FederatedServer:
    """The server of `federation()`; `rule` says who takes part in a round."""
    data = federation()
    members = dict(zip(client_names(data), data.sizes.tolist(), strict=True))
    settings = {"weights": "uniform", "seed": 0, "digest": DIGEST, "shape": data.shape, "rounds": PLANNED} | changes
    module = tanh_network().to(dtype)
    return FederatedServer(method, module, client, Membership(members, "here"), participation(rule), **settings)
