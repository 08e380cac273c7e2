"""What a federation's model must be, computed again from who was asked and who counted, without any network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fedflat.federation.client import FederatedClient
from fedflat.federation.flower.study import Study, own_samples
from fedflat.federation.membership import Membership
from fedflat.federation.messages import TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer

MOST = 1000  # of what is remembered
Round = tuple[tuple[str, ...], tuple[str, ...]]  # who was asked, and who counted
Tensors = dict[str, torch.Tensor]


class Records:
    """A client's records in memory, in place of `ClientState`'s folder."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def load(self, t: int, initial: Any) -> Any:
        return initial if t < 0 else self._kept[t]

    def save(self, t: int, record: Any, needed: object) -> None:
        self._kept[t] = record.map(lambda x: x.clone())


@dataclass
class Counted:
    """A `Transport` on which those clients reply that counted, in the order of their names."""

    clients: Mapping[str, FederatedClient]
    names: Sequence[str]

    def exchange(self, requests: Mapping[str, TrainRequest], deadline: float) -> Iterator[tuple[str, TrainReply]]:
        for name in self.names:
            yield name, self.clients[name].train(requests[name])


@dataclass
class Reference:
    """Carries out the rounds of one study, each with the clients that are said to have counted."""

    study: Study
    samples: Mapping[str, tuple[np.ndarray, np.ndarray]]
    _ends: dict[tuple[Round, ...], tuple[Tensors, Tensors]] = field(default_factory=dict)

    def end(self, rounds: Sequence[Round]) -> tuple[Tensors, Tensors]:
        """The server's state and the model's parameters after these rounds."""
        key = tuple(rounds)
        if len(self._ends) > MOST:
            self._ends.clear()
        if key not in self._ends:
            server, clients = self._server(), self._clients()
            for asked, counted in rounds:
                server.ejected = frozenset(self.samples) - set(asked)
                report = server.round(Counted(clients, counted))
                assert sorted(report.accepted) == sorted(counted), report
            self._ends[key] = server.tensors(), dict(server.model.state_dict())
        return self._ends[key]

    def _server(self) -> FederatedServer:
        study = self.study
        objective = study.objective()
        members = {name: len(y) for name, (_, y) in self.samples.items()}
        return FederatedServer(
            study.method(objective), objective, study.plan, Membership(members, "0" * 16), study.spec.weights,
            study.digest, study.shape, replace(study.terms, quorum=0.01, secure_sum=None),
        )  # fmt: skip

    def _clients(self) -> dict[str, FederatedClient]:
        study, found = self.study, {}
        for number, name in enumerate(sorted(self.samples)):
            objective, data = study.objective(), own_samples(study, self.samples[name], number)
            found[name] = FederatedClient(study.method(objective), objective, data, study.plan, Records(), study.digest)
            found[name]._state = Records()
            found[name]._executor = Remembered(found[name]._executor)
        return found


@dataclass
class Remembered:
    """An executor that trains for the same message, record and round once; what it gives is not changed by anybody."""

    executor: Any
    found: dict[bytes, Any] = field(default_factory=dict)

    def train(self, cohort: np.ndarray, record: Any, down: Any, ctx: Any) -> Any:
        digest = hashlib.sha256(f"{cohort.tolist()} {ctx.t} {ctx.share} {ctx.sampled}".encode())
        for one in (record, down):
            for name, x in one.tensors().items():
                digest.update(name.encode() + x.numpy().tobytes())
        key = digest.digest()
        if key not in self.found:
            if len(self.found) > MOST:
                self.found.clear()
            self.found[key] = self.executor.train(cohort, record, down, ctx)
        return self.found[key]
