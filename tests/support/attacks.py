"""Ten clients with parts of the digits, one of which does what it likes; over the coordinator itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import fedflat as ff
from fedflat.core.method import Method
from fedflat.experiments.spec import federated_data
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer, RoundTerms
from fedflat.metrics.accuracy import score
from fedflat.rounds.participation import participation
from support.studies import run_spec

CLIENT = ff.Client(lr=0.1, epochs=2, batch_size=20)
LIAR = "c-0"
Attack = Callable[[TrainRequest, TrainReply], TrainReply]


def every_number(value: float, of: int = 0) -> Attack:
    """All numbers of the message's vectors are `value`, from round `of` on."""

    def attack(order: TrainRequest, answer: TrainReply) -> TrainReply:
        def lie(x):
            return replace(x, data=np.full(x.shape, value, "<f4").tobytes())

        return answer if order.t < of else replace(answer, up={name: lie(x) for name, x in answer.up.items()})

    return attack


def times(factor: float) -> Attack:
    """What was trained, multiplied."""

    def attack(order: TrainRequest, answer: TrainReply) -> TrainReply:
        def lie(x):
            return replace(x, data=(np.frombuffer(x.data, "<f4") * np.float32(factor)).tobytes())

        return replace(answer, up={name: lie(x) for name, x in answer.up.items()})

    return attack


class Crowd:
    """Ten participants, the first of which passes its answers through `attack`."""

    def __init__(self, method: Method, folder: Path, attack: Attack | None = None, **terms: float) -> None:
        spec = run_spec(data={"name": "digits", "clients": 10}, partition={"name": "dirichlet", "alpha": 0.5})
        self.data, self.attack = federated_data(spec), attack
        names, sizes = [f"c-{i}" for i in range(10)], self.data.sizes.tolist()
        self.participants = {
            name: FederatedClient(method, self.module(), self.data.alone(i), CLIENT, 0, folder / name, "study")
            for i, name in enumerate(names)
        }
        members = Membership(dict(zip(names, sizes, strict=True)), "here")
        self.server = FederatedServer(
            method, self.module(), CLIENT, members, participation(1.0), "uniform", 0, "study", self.data.shape,
            RoundTerms(**terms),
        )  # fmt: skip
        self.missing: list[dict[str, str]] = []

    def module(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )

    def exchange(self, orders, deadline):
        for name in sorted(orders):
            answer = self.participants[name].train(orders[name])
            yield name, self.attack(orders[name], answer) if self.attack and name == LIAR else answer

    def run(self, rounds: int) -> float:
        """Accuracy on the test samples after so many rounds."""
        for _ in range(rounds):
            self.missing.append(dict(self.server.round(self).missing))
        data = self.data.to(self.server.w.device, self.server.w.dtype)
        return score(self.server.objective, self.server.server.w, *data.test, data.preparation).accuracy
