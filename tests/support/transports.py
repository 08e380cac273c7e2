"""Transports within one process, whose clients may be silent, late or malicious."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import Reply, TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer
from fedflat.rounds.guard import Guard
from fedflat.rounds.model_parts import method_of_run
from fedflat.rounds.participation import participation
from fedflat.rounds.run_plan import RunPlan
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


def knowing(method: Method, module: torch.nn.Module) -> Method:
    """The method with the shapes of the model's parameters, as a study makes it."""
    return method.on_model(tuple(tuple(p.shape) for p in module.parameters()))


def client_names(data: ff.FederatedData) -> list[str]:
    return [f"clinic-{i:02d}" for i in range(data.clients)]


def federated_clients(
    method: Method,
    folder: Path,
    client: ff.Client,
    dtype=torch.float32,
    rule: object = 3,
    rounds: int = PLANNED,
    compress: ff.Compression | None = None,
) -> dict[str, FederatedClient]:
    """All clients of `federation()` by name, each with its own data only, and its own folder."""
    data, plan = federation(), RunPlan(client, participation(rule), rounds=rounds)
    return {
        name: FederatedClient(
            *_party(method, client, dtype, compress), data.alone(i), plan, folder / name, DIGEST
        )
        for i, name in enumerate(client_names(data))
    }  # fmt: skip


def federated_server(
    method: Method, client: ff.Client, rule: object = 3, dtype=torch.float32, guard: Guard | None = None,
    rounds: int = PLANNED, compress: ff.Compression | None = None, **changes,
) -> FederatedServer:  # fmt: skip
    """The server of `federation()`; `rule` says who takes part in a round."""
    data = federation()
    members = dict(zip(client_names(data), data.sizes.tolist(), strict=True))
    settings = {"weights": "uniform", "digest": DIGEST, "shape": data.shape} | changes
    plan = RunPlan(client, participation(rule), rounds=rounds, guard=guard)
    return FederatedServer(*_party(method, client, dtype, compress), plan, Membership(members, "here"), **settings)


def _party(
    method: Method, client: ff.Client, dtype: torch.dtype, compress: ff.Compression | None
) -> tuple[Method, Objective]:
    """What a server or client of its own is made of."""
    objective = Objective(tanh_network().to(dtype))
    return method_of_run(method, objective, client, compression=compress), objective
