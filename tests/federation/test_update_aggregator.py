"""Hostile and broken replies: each is rejected by name, and leaves the model and the memory as they are."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.federation.messages import TrainReply, pack
from fedflat.federation.server import RoundFailedError, RoundTerms
from fedflat.methods import all_methods, find
from fedflat.rounds.cost import sends_move
from support.effort import effort
from support.malicious_replies import MUTATIONS, change_vector
from support.transports import InProcessTransport, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
FedAvg, FedSMOO = find("FedAvg"), find("FedSMOO")
OTHERS = {  # what they send is not w_i - w
    "FedSpeed": {"active_prox_correct": True}, "FedInit": {"aggregate": "updates"}, "FedGMT": {"dual_scope": "active"},
}  # fmt: skip


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
    while count < effort(300, 5000):
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
    with pytest.raises(RoundFailedError, match="0 of 3 clients replied"):
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


@pytest.mark.parametrize("gradients", [2**52, 13, 11, 0])
def test_gradients_are_those_of_the_steps(gradients: int, tmp_path: Path) -> None:
    """FedSMOO takes two at each step; the client of five samples takes two steps in batches of four, and so four."""
    clients = federated_clients(FedSMOO(), tmp_path, CLIENT)
    bad = "clinic-00"

    def change(name: str, reply: TrainReply) -> TrainReply:
        return replace(reply, gradients=gradients) if name == bad else reply

    server = federated_server(FedSMOO(), CLIENT, rule=1.0)
    report = server.round(InProcessTransport(clients, change))
    assert report.missing == {bad: f"gradients is {gradients}, expected 4"}
    assert report.metrics["gradients"] == 2 * (3 + 1 + 2 + 1 + 3), "of 12, 3, 8, 1 and 9 samples"


def test_drift_is_read_off_the_message(tmp_path: Path) -> None:
    """Whatever a client claims, 1e149 or nothing."""
    for claim in (1e149, 0.0):
        server = federated_server(FedAvg(), CLIENT, rule=1.0)
        transport = InProcessTransport(
            federated_clients(FedAvg(), tmp_path / str(claim), CLIENT),
            lambda name, reply, claim=claim: replace(reply, drift=claim) if name == "clinic-03" else reply,
        )
        honest = federated_server(FedAvg(), CLIENT, rule=1.0)
        honest.round(InProcessTransport(federated_clients(FedAvg(), tmp_path / "honest", CLIENT)))
        assert server.round(transport).missing == {}
        assert server.history == honest.history


@pytest.mark.parametrize("name", OTHERS)
def test_drift_that_the_message_does_not_say_is_bounded_as_norms_are(name: str, tmp_path: Path) -> None:
    """The bound is a multiple of the initial model's norm."""
    method, bad = find(name)(**OTHERS[name]), "clinic-03"
    clients = federated_clients(method, tmp_path, CLIENT)
    largest = 100 * federated_server(method, CLIENT).guard.start
    for claim, refused in ((1.01 * largest, True), (0.99 * largest, False)):
        transport = InProcessTransport(
            clients, lambda name, reply, claim=claim: replace(reply, drift=claim) if name == bad else reply
        )
        missing = federated_server(method, CLIENT, rule=1.0).round(transport).missing
        assert list(missing) == [bad] * refused
        assert all(reason.startswith("claimed drift: norm is") for reason in missing.values())


def test_no_record_that_a_guard_shortens_sets_the_drift_that_is_reported(tmp_path: Path) -> None:
    """The client sends 1e30 in every number, claims 1e149, and is shortened to the bound."""
    guard = ff.Guard(bound=0.5)

    def change(name: str, reply: TrainReply) -> TrainReply:
        huge = change_vector(reply, data=np.full(73, 1e30, "<f4").tobytes())
        return replace(huge, drift=1e149) if name == "clinic-03" else reply

    for method in (FedAvg(), find("FedSpeed")(**OTHERS["FedSpeed"])):
        server = federated_server(method, CLIENT, rule=1.0, guard=guard)
        clients = federated_clients(method, tmp_path / type(method).__name__, CLIENT)
        server.round(InProcessTransport(clients, change))
        assert server.history[0]["clipped"] >= 1
        assert server.history[0]["drift"] <= 0.5


def test_which_methods_send_what_their_clients_move() -> None:
    """By their formulas all do but these three, as they are set here: a dual is added, or the start is another."""
    federated = [method for method in all_methods().values() if method.training == "federated"]
    assert all(sends_move(method()) for method in federated)
    assert not any(sends_move(find(name)(**options)) for name, options in OTHERS.items())
