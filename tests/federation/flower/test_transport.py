"""Nodes that leave, move, come back, stall or lie: who is missing in a round, and for how long the others wait."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedflat.cli.flower import event_lines
from fedflat.federation.flower import message_queue, transport
from support.flower_fixtures import OWN_SAMPLES, GridFederation, own_clients, own_study, simulated, study_of
from support.local_grid import LocalGrid

pytestmark = pytest.mark.slow


def test_nodes_come_back_with_other_numbers_and_keep_their_records(tmp_path: Path) -> None:
    """All SuperNodes end after each round, and others start with the same folders."""

    class Restless(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.message_type == "train":
                old = found[0].metadata.src_node_id
                self.nodes[old + 1000] = self.nodes.pop(old)
            return found

    federation = GridFederation(study_of(method="fedsmoo"), tmp_path / "federation")
    assert federation.serve(grid=Restless) == simulated(federation.spec, tmp_path / "simulation")
    assert {event["client"] for event in federation.events("client lost")} == {f"client-{i}" for i in range(5)}


def test_a_client_that_is_back_before_the_network_knows_that_it_was_gone(tmp_path: Path) -> None:
    """The new node is refused while the old one is connected. Once that is gone, the new one is asked again at once."""

    class Slow(LocalGrid):
        rounds = 0

        def push_messages(self, messages):
            messages = list(messages)
            if messages[0].metadata.message_type == "train" and messages[0].metadata.dst_node_id == 101:
                self.nodes.setdefault(1101, self.nodes[101])
            if messages[0].metadata.dst_node_id == 1101 and 101 in self.nodes and Slow.rounds == 0:
                Slow.rounds = 1
            return super().push_messages(messages)

        def get_nodes(self):
            if Slow.rounds == 1 and federation.events("node refused"):
                self.nodes.pop(101, None)
            return super().get_nodes()

    federation = GridFederation(study_of(method="scaffold", participation=1.0), tmp_path / "federation", deadline=20.0)
    assert federation.serve(grid=Slow) == simulated(federation.spec, tmp_path / "simulation")
    refused = federation.events("node refused")
    assert [event["reason"] for event in refused] == ["client-1: another node has this name"]
    assert [event["client"] for event in federation.events("client")].count("client-1") == 2


def test_a_request_is_sent_again_to_a_client_that_comes_back_in_time(tmp_path: Path) -> None:
    """A node ends after it has received its request; another with its folder is connected before the deadline."""

    class Crashing(LocalGrid):
        crashed = False

        def push_messages(self, messages):
            messages = list(messages)
            numbers = super().push_messages(messages)
            if messages[0].metadata.message_type == "train" and not Crashing.crashed:
                Crashing.crashed = True
                node = messages[0].metadata.dst_node_id
                self.replies.clear()
                self.nodes[node + 1000] = self.nodes.pop(node)
            return numbers

    federation = GridFederation(study_of(method="scaffold"), tmp_path / "federation")
    assert federation.serve(grid=Crashing) == simulated(federation.spec, tmp_path / "simulation")
    assert Crashing.crashed


@pytest.mark.usefixtures("no_waiting")
def test_a_client_that_does_not_reply_misses_the_deadline(tmp_path: Path) -> None:
    federation = GridFederation(study_of(participation=1.0, rounds=2), tmp_path / "federation", deadline=3.0)
    federation.nodes[100].tamper = lambda number, contents: None if federation.events("begun") else contents
    federation.serve()
    assert [event["missing"] for event in federation.events("round")] == [
        {"client-0": "no answer before the deadline"}
    ] * 2


class Leaving(LocalGrid):
    """Node 101 ends when it has received its first request, and the network replies for it; it may come back."""

    back_after: int | None = None  # listings of the nodes without it
    left = False
    listings = 0

    def push_messages(self, messages):
        messages = list(messages)
        numbers = super().push_messages(messages)
        if messages[0].metadata.message_type == "train" and messages[0].metadata.dst_node_id == 101 and not self.left:
            self.gone, self.left = self.nodes[101], True
            self.lose(101, messages[0])
        return numbers

    def get_nodes(self):
        self.listings += self.left
        if self.back_after is not None and self.listings > self.back_after:
            self.nodes[101] = self.gone
        return super().get_nodes()


def test_a_client_that_is_gone_is_given_up_long_before_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the round in which it leaves, and in those after it."""
    monkeypatch.setattr(transport, "ABSENT_SECONDS", 0.2)
    federation = GridFederation(study_of(participation=1.0, rounds=2), tmp_path / "federation", deadline=60.0)
    begin = time.monotonic()
    federation.serve(grid=Leaving)
    assert time.monotonic() - begin < 30
    missing = [event["missing"] for event in federation.events("round")]
    assert missing == [{"client-1": "it has been gone for 0.2 seconds"}] * 2


def test_a_client_that_comes_back_soon_after_the_network_lost_it_is_not_missed(tmp_path: Path) -> None:
    """With a key it comes back with its number."""

    class Returning(Leaving):
        back_after = 3

    federation = GridFederation(study_of(method="scaffold", participation=1.0), tmp_path / "federation", deadline=60.0)
    assert federation.serve(grid=Returning) == simulated(federation.spec, tmp_path / "simulation")
    assert [event["client"] for event in federation.events("client lost")] == ["client-1"]


def test_a_reply_whose_rest_never_comes_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower announces a reply when its sender begins to send it, and then waits for all of it, for minutes."""
    monkeypatch.setattr(message_queue, "PULL_SECONDS", 0.05)
    stuck = threading.Event()

    class Stalling(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id and found[0].metadata.src_node_id == 100:
                assert stuck.wait(30), "a thread that is left must end"
            return found

    federation = GridFederation(study_of(participation=1.0, rounds=2), tmp_path / "federation", deadline=3.0)
    begin = time.monotonic()
    federation.serve(grid=Stalling)
    assert time.monotonic() - begin < 20
    stuck.set()
    assert [event["missing"] for event in federation.events("round")] == [
        {"client-0": "no answer before the deadline"}
    ] * 2


def test_a_node_that_was_refused_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operator repairs it while the server waits."""
    monkeypatch.setattr(transport, "RETRY_SECONDS", 0.05)
    federation = GridFederation(own_study(rounds=1), tmp_path / "federation", **OWN_SAMPLES)
    samples, asked = dict(zip("abc", own_clients(), strict=True)), []

    def repaired(name):
        asked.append(name)
        x, y = samples[name]
        return x[:, :4] if len(asked) < 4 else x, y

    federation.serve(federation.own_nodes(repaired))
    assert len(federation.events("node refused")) == 3
    assert "samples have shape (4,), the study's (6,)" in federation.events("node refused")[0]["reason"]


def test_a_node_that_is_busy_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the server, clients may still be training for an earlier request, and reply only later."""
    monkeypatch.setattr(transport, "ABSENT_SECONDS", 0.2)
    federation = GridFederation(
        study_of(method="scaffold", participation=1.0, rounds=2), tmp_path / "federation", deadline=20.0
    )

    class Ending(LocalGrid):
        def pull_messages(self, message_ids):
            if federation.events("round"):
                raise KeyboardInterrupt
            return super().pull_messages(message_ids)

    class Busy(LocalGrid):
        begin = time.monotonic()

        def pull_messages(self, message_ids):
            return super().pull_messages(message_ids) if time.monotonic() - self.begin > 1.5 else []

    with pytest.raises(KeyboardInterrupt):
        federation.serve(grid=Ending)
    assert [event["t"] for event in federation.events("round")] == [0]
    Busy.begin = time.monotonic()
    assert federation.serve(grid=Busy) == simulated(federation.spec, tmp_path / "simulation")


def test_what_a_restarted_network_did_not_accept_is_sent_again(tmp_path: Path) -> None:
    """Every other upload is interrupted by a restart of the SuperLink, questions to nodes included."""

    class Restarting(LocalGrid):
        uploads = 0

        def push_messages(self, messages):
            Restarting.uploads += 1
            if Restarting.uploads % 2:
                raise ObjectPushError("an object", 1, "a session")
            return super().push_messages(messages)

    federation = GridFederation(study_of(method="scaffold"), tmp_path / "federation")
    assert federation.serve(grid=Restarting) == simulated(federation.spec, tmp_path / "simulation")
    assert [event["missing"] for event in federation.events("round")] == [{}] * 4
    assert Restarting.uploads > 2 * 4 * 3


def test_a_request_is_not_sent_without_end(tmp_path: Path) -> None:
    """A node sends the reply that the network sends for a node that has gone."""

    class Gone(LocalGrid):
        requests = 0

        def push_messages(self, messages):
            messages = list(messages)
            numbers = super().push_messages(messages)
            if messages[0].metadata.message_type == "train" and messages[0].metadata.dst_node_id == 102:
                Gone.requests += 1
                node = self.nodes[102]
                self.lose(102, messages[0])
                self.nodes[102] = node
            return numbers

    federation = GridFederation(study_of(participation=1.0, rounds=1), tmp_path / "federation", deadline=20.0)
    federation.serve(grid=Gone)
    assert federation.events("round")[0]["missing"] == {"client-2": "its node has gone"}
    assert Gone.requests == transport.MAX_SENDS


def test_the_log_says_who_is_waited_for_ever_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client says nothing and one has gone: after a third of a second, two thirds, and so on until the deadline."""
    monkeypatch.setattr(transport, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(transport, "ABSENT_SECONDS", 30.0)
    federation = GridFederation(study_of(participation=1.0, rounds=1), tmp_path / "federation", deadline=2.0)

    class Silent(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            if messages[0].metadata.message_type == "train":
                self.nodes.pop(101, None)
                if messages[0].metadata.dst_node_id == 103:
                    self.nodes[103].tamper = lambda number, contents: None
            return super().push_messages(messages)

    federation.serve(grid=Silent)
    events = federation.events("waiting for answers")
    assert len(events) == 3  # after 0.3, 0.6 and 1.2 seconds of 2
    assert {(event["t"], event["asked"], event["answered"]) for event in events} == {(0, 5, 3)}
    for event in events:
        assert list(event["waiting"]) == ["client-1", "client-3"]
        assert event["waiting"]["client-1"] == "no node of it is connected"
        assert re.fullmatch(r"since \d\d:\d\d:\d\d, 0 bytes have come", event["waiting"]["client-3"])
    lines = event_lines(events[0])
    assert lines[0].endswith("waiting for answers  t 0  asked 5  answered 3")
    assert lines[1] == "  client-1: no node of it is connected"


def test_before_the_beginning_the_log_says_who_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STALL_SECONDS", 0.2)
    federation = GridFederation(study_of(rounds=1), tmp_path / "federation", wait=0.7)
    federation.nodes.pop(102)
    with pytest.raises(transport.GatheringError):
        federation.serve()
    came = [f"client-{i}" for i in (0, 1, 3, 4)]
    assert [event["came"] for event in federation.events("waiting for clients")] == [came] * 2


@pytest.mark.parametrize(
    ("seconds", "left", "pause"), [(0.01, 60, 0.25), (0.2, 60, 0.8), (9.0, 60, 2.0), (9.0, 1.25, 1.0), (9.0, 0.1, 0.25)]
)
def test_checks_that_take_longer_come_less_often_and_one_comes_before_the_deadline(
    monkeypatch: pytest.MonkeyPatch, seconds: float, left: float, pause: float
) -> None:
    monkeypatch.setattr(transport, "POLL_SECONDS", 0.25)
    monkeypatch.setattr(transport, "SCAN_SECONDS", 2.0)
    assert transport.pause_after(seconds, left) == pytest.approx(pause)
