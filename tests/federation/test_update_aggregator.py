"""Hostile and broken replies: each is rejected by name, and leaves the model and the memory as they are."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.federation.codec import pack
from fedflat.federation.messages import TrainReply
from fedflat.federation.server import RoundFailedError, RoundTerms
from fedflat.methods import find
from support.effort import effort
from support.malicious_replies import MUTATIONS
from support.transports import InProcessTransport, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
FedAvg, FedSMOO = find("FedAvg"), find("FedSMOO")


@pytest.mark.slow
def test_mutated_replies_are_rejected(tmp_path: Path) -> None:
    """In rounds of six, five replies are mutated: all five are rejected by name, and the model is that of the sixth."""
    rng, count = random.Random(0), 0
    clients = federated_clients(FedSMOO(), tmp_path, CLIENT)
    honest = {}
    federated_server(FedSMOO(), CLIENT, rule=1.0).round(InProcessTransport(clients, honest.setdefault))
    malicious = sorted(clients)[1:]
    expected = None
    tracemalloc.start()
    while count < effort(500, 5000):
        chosen = {name: rng.choice(sorted(MUTATIONS)) for name in malicious}
        mutated = {name: MUTATIONS[kind](rng, honest[name]) for name, kind in chosen.items()}
        server = federated_server(FedSMOO(), CLIENT, rule=1.0, terms=RoundTerms(quorum=0.1))
        report = server.round(RecordedReplies(honest | mutated))
        assert set(report.missing) == set(malicious), chosen
        assert all(0 < len(reason) < 300 for reason in report.missing.values()), (
            "what was sent is not repeated at length"
        )
        expected = server.w.clone() if expected is None else expected
        assert torch.equal(server.w, expected)
        count += len(mutated)
    assert tracemalloc.get_traced_memory()[1] < 50 * 10**6
    tracemalloc.stop()


class RecordedReplies:
    """A transport that yields given replies."""

    def __init__(self, replies: dict[str, TrainReply]) -> None:
        self._replies = replies

    def exchange(self, requests, deadline):
        yield from self._replies.items()


@pytest.mark.parametrize("kind", sorted(MUTATIONS))
def test_every_kind_alone_fails_the_round_and_leaves_the_model(kind: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    clients = federated_clients(FedSMOO(), tmp_path, CLIENT)
    server = federated_server(FedSMOO(), CLIENT)
    before = {name: x.clone() for name, x in server.state.tensors().items()}
    with pytest.raises(RoundFailedError, match="0 of 3 clients have answered"):
        server.round(InProcessTransport(clients, lambda name, reply: MUTATIONS[kind](rng, reply)))
    assert all(torch.equal(getattr(server.state, name), x) for name, x in before.items())


def test_unrequested_replies_are_ignored(tmp_path: Path) -> None:
    """From a client that is no member, from one that was not sampled, and a second one from the same client."""
    transport = InProcessTransport(federated_clients(FedAvg(), tmp_path, CLIENT))

    class WithUnrequested(InProcessTransport):
        def exchange(self, requests, deadline):
            unrequested = TrainReply(0, 5, 6, 6, 1.0, pack(FedAvg.up(delta=torch.full((73,), 9.0))))
            yield "stranger", unrequested
            yield next(name for name in self.clients if name not in requests), unrequested
            for name, reply in super().exchange(requests, deadline):
                yield name, reply
                yield name, replace(unrequested, samples=reply.samples, steps=reply.steps)

    server, quiet = federated_server(FedAvg(), CLIENT), federated_server(FedAvg(), CLIENT)
    server.round(WithUnrequested(transport.clients))
    quiet.round(InProcessTransport(federated_clients(FedAvg(), tmp_path / "other", CLIENT)))
    assert torch.equal(server.w, quiet.w)
