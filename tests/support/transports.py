"""Carriers of a test: participants in this process, who may be silent, late or malicious."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import Failure, TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer
from fedflat.rounds.participation import participation
from support.federation import federation, tanh_network

DIGEST = "study"
Change = Callable[[str, TrainReply], TrainReply | Failure | None]


class InProcess:
    """Participants by name; answers come in an order of their own, after `change`."""

    def __init__(
        self, participants: Mapping[str, FederatedClient], change: Change = lambda name, answer: answer
    ) -> None:
        self.participants, self.change = dict(participants), change

    def exchange(
        self, orders: Mapping[str, TrainRequest], deadline: float
    ) -> Iterator[tuple[str, TrainReply | Failure]]:
        shuffled = sorted(orders)
        random.Random(len(orders) + sum(order.t for order in orders.values())).shuffle(shuffled)
        for name in shuffled:
            answer = self.change(name, self.participants[name].train(orders[name]))
            if answer is not None:
                yield name, answer


def names(data: ff.FederatedData) -> list[str]:
    return [f"clinic-{i:02d}" for i in range(data.clients)]


def participants(method: Method, folder: Path, client: ff.Client, dtype=torch.float32) -> dict[str, FederatedClient]:
    """One for each client of the federation, with its own data only, and its own folder."""
    data = federation()
    return {
        name: FederatedClient(method, tanh_network().to(dtype), data.alone(i), client, 0, folder / name, DIGEST)
        for i, name in enumerate(names(data))
    }


def coordinator(method: Method, client: ff.Client, rule: object = 3, dtype=torch.float32, **changes) -> FederatedServer:
    data = federation()
    members = dict(zip(names(data), data.sizes.tolist(), strict=True))
    settings = {"weights": "uniform", "seed": 0, "digest": DIGEST, "shape": data.shape} | changes
    module = tanh_network().to(dtype)
    return FederatedServer(method, module, client, Membership(members, "here"), participation(rule), **settings)
