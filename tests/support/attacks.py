"""A federation of ten clients with parts of the digits, one of which is malicious."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.experiments.spec import federated_data
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer, RoundTerms
from fedflat.metrics.accuracy import score
from fedflat.rounds.run_plan import RunPlan
from support.studies import run_spec

CLIENT = ff.Client(lr=0.1, epochs=2, batch_size=20)
ATTACKER = "c-0"
Attack = Callable[[TrainRequest, TrainReply], TrainReply]  # the honest reply -> the one that is sent


def every_number(value: float, from_round: int = 0) -> Attack:
    """Replace all numbers of the reply by `value`."""

    def attack(request: TrainRequest, reply: TrainReply) -> TrainReply:
        def change(x):
            return replace(x, data=np.full(x.shape, value, "<f4").tobytes())

        return reply if request.t < from_round else replace(reply, up={name: change(x) for name, x in reply.up.items()})

    return attack


def scaled(factor: float) -> Attack:
    """Multiply the update by `factor`."""

    def attack(request: TrainRequest, reply: TrainReply) -> TrainReply:
        def change(x):
            return replace(x, data=(np.frombuffer(x.data, "<f4") * np.float32(factor)).tobytes())

        return replace(reply, up={name: change(x) for name, x in reply.up.items()})

    return attack


class AttackedFederation:
    """Ten clients and their server. The first client sends what `attack` makes of its reply."""

    def __init__(self, method: Method, folder: Path, attack: Attack | None = None, **terms: float) -> None:
        spec = run_spec(data={"name": "digits", "clients": 10}, partition={"name": "dirichlet", "alpha": 0.5})
        self.data, self.attack = federated_data(spec), attack
        names, sizes = [f"c-{i}" for i in range(10)], self.data.sizes.tolist()
        self.clients = {
            name: FederatedClient(
                method, Objective(self.module()), self.data.alone(i), RunPlan(CLIENT), folder / name, "study"
            )
            for i, name in enumerate(names)
        }
        members = Membership(dict(zip(names, sizes, strict=True)), "here")
        self.server = FederatedServer(
            method, Objective(self.module()), RunPlan(CLIENT), members, "uniform", "study", self.data.shape,
            RoundTerms(**terms),
        )  # fmt: skip
        self.missing: list[dict[str, str]] = []

    def module(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )

    def exchange(self, requests: Mapping[str, TrainRequest], deadline: float) -> Iterator[tuple[str, TrainReply]]:
        for name in sorted(requests):
            reply = self.clients[name].train(requests[name])
            yield name, self.attack(requests[name], reply) if self.attack and name == ATTACKER else reply

    def run(self, rounds: int) -> float:
        """Carry out so many rounds; return the accuracy on the test samples."""
        for _ in range(rounds):
            self.missing.append(dict(self.server.round(self).missing))
        data = self.data.to(self.server.w.device, self.server.w.dtype)
        return score(self.server.objective, self.server.state.w, *data.test, data.preparation).accuracy
