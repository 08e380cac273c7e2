"""Flower's apps and messages without its network: the simulator's bits, whoever is missing, stopped or back."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from safetensors.torch import load_file

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.experiments import runner
from fedflat.federation.flower import event_log, message_queue, transport
from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.settings import NodeSettings
from fedflat.federation.flower.transport import GatheringError
from fedflat.federation.server import RoundFailedError
from fedflat.methods import find
from support.flower_fixtures import Tried, failing, hurried, study_of  # noqa: F401 (a fixture)
from support.local_grid import LocalGrid, Node


def simulated(spec, folder: Path) -> bytes:
    runner.run(spec, folder)
    return (folder / "model.safetensors").read_bytes()


def test_every_method_leaves_the_file_of_the_simulator(method: Method, tmp_path: Path) -> None:
    spec = study_of(method=type(method).__name__)
    tried = Tried(spec, tmp_path / "federation")
    assert tried.serve() == simulated(spec, tmp_path / "simulation")
    assert [event["missing"] for event in tried.events("round")] == [{}] * 4


def test_what_a_federation_leaves(tmp_path: Path) -> None:
    """Metrics are the simulator's; events tell all that happened."""
    spec = study_of(eval_every=2)
    tried = Tried(spec, tmp_path / "federation")
    tried.serve()
    runner.run(spec, tmp_path / "simulation")
    ours, theirs = (
        pq.read_table(tmp_path / name / "metrics.parquet").to_pydict()
        for name in ("federation/out", "simulation")
    )  # fmt: skip
    for name in ("t", "lr", "clients", "gradients", "test_accuracy", "test_loss"):
        assert ours[name] == theirs[name], name
    assert ours["drift"] == pytest.approx(theirs["drift"], rel=1e-6)
    assert [event["client"] for event in tried.events("client")] == [f"client-{i}" for i in range(5)]
    result = json.loads((tried.out / "result.json").read_text())
    assert result["model_sha256"] == tried.events("finished")[0]["model_sha256"]
    assert [path.name for path in sorted((tried.out / "checkpoint").iterdir())] == [
        f"round-{t:06d}.safetensors" for t in (2, 3, 4)
    ]


def own_clients(sizes: tuple[int, ...] = (9, 4, 6)) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.normal(i, 1, (n, 6)).astype("float32"), rng.integers(3, size=n)) for i, n in enumerate(sizes)]


OWN = {"clients": 3, "shape": "6", "classes": 3}


def own_study(**changes):
    return study_of(model={"name": "mlp", "options": {"hidden": [5]}}, method="scaffold", participation=2, **changes)


def simulation_of_own(rounds: int) -> ff.Simulation:
    spec = own_study()
    sim = ff.Simulation(
        model="mlp", model_options={"hidden": [5]}, data=ff.FederatedData.from_clients(own_clients(), classes=3),
        method=find("scaffold")(), client=ff.Client(**spec.client.values()), participation=2, rounds=rounds,
        executor="sequential", dtype=torch.float32,
    )  # fmt: skip
    list(sim)
    return sim


def test_clients_bring_their_own_samples(tmp_path: Path) -> None:
    """From folders, from a function, and tested at the server: the bits are those of a simulation of them all."""
    tried = Tried(own_study(), tmp_path / "federation", test=str(tmp_path / "b"), **OWN)
    for name, (x, y) in zip("abc", own_clients(), strict=True):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", x)
        np.save(tmp_path / name / "y.npy", y)
    nodes = {i: tried.own_node(name, data=str(tmp_path / name)) for i, name in enumerate("abc", start=7)}
    given = {"state": str(tried.folder / "state"), "name": "c", "data": "nowhere"}
    nodes[9] = Node(client_app(tried.folder, lambda node: own_clients()["abc".index(node["name"])]), given)
    tried.serve(nodes)
    model, sim = load_file(tried.out / "model.safetensors"), simulation_of_own(4)
    assert all(torch.equal(model[name], p) for name, p in sim.model.named_parameters())
    x, y = (torch.from_numpy(part) for part in own_clients()[1])
    right = (sim.model(x).argmax(-1) == y).double().mean()
    assert tried.events("round")[-1]["test_accuracy"] == pytest.approx(float(right))


def test_nodes_come_back_with_other_numbers_and_keep_their_records(tmp_path: Path) -> None:
    """All SuperNodes end after each round, and others start with the same folders."""

    class Restless(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.message_type == "train":
                old = found[0].metadata.src_node_id
                self.nodes[old + 1000] = self.nodes.pop(old)
            return found

    tried = Tried(study_of(method="fedsmoo"), tmp_path / "federation")
    assert tried.serve(grid=Restless) == simulated(tried.spec, tmp_path / "simulation")
    assert {event["client"] for event in tried.events("client lost")} == {f"client-{i}" for i in range(5)}


def test_a_client_that_is_back_before_the_network_knows_that_it_was_gone(tmp_path: Path) -> None:
    """The old node is still there by name, and the new one is refused, until it is not; then it is asked at once."""

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
            if Slow.rounds == 1 and tried.events("node refused"):
                self.nodes.pop(101, None)
            return super().get_nodes()

    tried = Tried(study_of(method="scaffold", participation=1.0), tmp_path / "federation", deadline=20.0)
    assert tried.serve(grid=Slow) == simulated(tried.spec, tmp_path / "simulation")
    refused = tried.events("node refused")
    assert [event["reason"] for event in refused] == ["client-1: another node has this name"]
    assert [event["client"] for event in tried.events("client")].count("client-1") == 2


def test_an_order_is_sent_again_to_a_client_that_comes_back_in_time(tmp_path: Path) -> None:
    """A node ends after it has got its order; another with its folder is there before the deadline."""

    class Crashing(LocalGrid):
        crashed = False

        def push_messages(self, messages):
            messages = list(messages)
            numbers = super().push_messages(messages)
            if messages[0].metadata.message_type == "train" and not Crashing.crashed:
                Crashing.crashed = True
                node = messages[0].metadata.dst_node_id
                self._replies.clear()
                self.nodes[node + 1000] = self.nodes.pop(node)
            return numbers

    tried = Tried(study_of(method="scaffold"), tmp_path / "federation")
    assert tried.serve(grid=Crashing) == simulated(tried.spec, tmp_path / "simulation")
    assert Crashing.crashed


def test_a_client_that_says_nothing_misses_the_deadline(tmp_path: Path) -> None:
    tried = Tried(study_of(participation=1.0, rounds=2), tmp_path / "federation", deadline=3.0)
    tried.nodes[100].tamper = lambda number, contents: None if tried.events("begun") else contents
    tried.serve()
    assert [event["missing"] for event in tried.events("round")] == [{"client-0": "no answer before the deadline"}] * 2


class Leaving(LocalGrid):
    """Node 101 ends when it has got its first order, and the network answers for it; it may come back."""

    back_after = None  # seconds
    left = 0.0

    def push_messages(self, messages):
        messages = list(messages)
        numbers = super().push_messages(messages)
        if messages[0].metadata.message_type == "train" and messages[0].metadata.dst_node_id == 101 and not self.left:
            self.gone, self.left = self.nodes[101], time.monotonic()
            self.lose(101, messages[0])
        return numbers

    def get_nodes(self):
        if self.left and self.back_after is not None and time.monotonic() - self.left > self.back_after:
            self.nodes[101] = self.gone
        return super().get_nodes()


def test_a_client_that_is_gone_is_given_up_long_before_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the round in which it goes, and in those after it."""
    monkeypatch.setattr(transport, "ABSENT", 0.2)
    tried = Tried(study_of(participation=1.0, rounds=2), tmp_path / "federation", deadline=60.0)
    begin = time.monotonic()
    tried.serve(grid=Leaving)
    assert time.monotonic() - begin < 30
    missing = [event["missing"] for event in tried.events("round")]
    assert missing == [{"client-1": "it has been gone for 0.2 seconds"}] * 2


def test_a_client_that_comes_back_soon_after_the_network_lost_it_is_not_missed(tmp_path: Path) -> None:
    """With a key it comes back with its number."""

    class Returning(Leaving):
        back_after = 0.3

    tried = Tried(study_of(method="scaffold", participation=1.0), tmp_path / "federation", deadline=60.0)
    assert tried.serve(grid=Returning) == simulated(tried.spec, tmp_path / "simulation")
    assert [event["client"] for event in tried.events("client lost")] == ["client-1"]


def test_a_reply_whose_rest_never_comes_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's network announces a reply when its sending begins, and then waits for all of it, for minutes."""
    monkeypatch.setattr(message_queue, "PATIENCE", 0.05)
    stuck = threading.Event()

    class Stalling(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id and found[0].metadata.src_node_id == 100:
                assert stuck.wait(30), "a thread that is left must end"
            return found

    tried = Tried(study_of(participation=1.0, rounds=2), tmp_path / "federation", deadline=3.0)
    begin = time.monotonic()
    tried.serve(grid=Stalling)
    assert time.monotonic() - begin < 20
    stuck.set()
    assert [event["missing"] for event in tried.events("round")] == [{"client-0": "no answer before the deadline"}] * 2


def test_the_server_goes_on_from_its_last_round(tmp_path: Path) -> None:
    """Stopped in the middle of round 2: clients have trained in it already, and train in it again."""

    class Ending(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == "2":
                raise KeyboardInterrupt
            return found

    tried = Tried(study_of(method="fedsmoo"), tmp_path / "federation")
    with pytest.raises(KeyboardInterrupt):
        tried.serve(grid=Ending)
    assert tried.events("round")[-1]["t"] == 1
    assert tried.serve() == simulated(tried.spec, tmp_path / "simulation")
    assert [event["done"] for event in tried.events("begun")] == [0, 2]
    assert tried.serve() == simulated(tried.spec, tmp_path / "simulation"), "once more, and nothing is left to do"


def test_below_the_quorum_a_round_is_tried_again_and_then_the_federation_stops(tmp_path: Path) -> None:
    tried = Tried(study_of(participation=1.0), tmp_path / "federation", deadline=3.0, quorum=1.0)
    tried.nodes[103].tamper = lambda number, contents: None if tried.events("begun") else contents
    with pytest.raises(RoundFailedError, match=r"round 0: 4 of 5 clients have answered, 5 must \(client-3: no answer"):
        tried.serve()
    assert [event["attempt"] for event in tried.events("round failed")] == [1, 2, 3]
    tried.nodes[103] = tried.node(3, 5)
    tried.config["deadline"] = 5.0
    assert tried.serve() == simulated(tried.spec, tmp_path / "simulation")


def test_who_is_no_client_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two with one name, a key of another name, a number out of range, another version's: none is heard."""
    tried = Tried(study_of(rounds=1), tmp_path / "federation", wait=1.0)
    tried.nodes[200] = tried.node(2, 5)
    tried.nodes[201] = tried.node(7, 5)
    tried.nodes[202] = tried.node(1, 6)
    tried.nodes[104].registered = "client-0"
    with pytest.raises(
        GatheringError, match=r"4 of 5 clients came within 1 seconds \(client-0, .*, client-3\); node"
    ) as e:
        tried.serve()
    for line in (
        "node 104 is none: client-4: its key was registered with the name client-0",
        "node 200 is none: client-2: another node has this name",
        "node 201 is none: node-config: partition-id is 7, expected 0 to 4",
        "node 202 is none: node-config: num-partitions is 6, the study has 5 clients",
    ):
        assert line in str(e.value)
    assert not (tried.out / "checkpoint").exists() or not any((tried.out / "checkpoint").iterdir())
    assert tried.events("failed")[0]["reason"] == str(e.value)
    monkeypatch.setattr("fedflat.federation.flower.server_app.version", lambda: "0.0.9")
    with failing(GatheringError, "client-0: version is 0.1.0, the server's 0.0.9"):
        tried.serve()


def test_one_that_comes_after_the_beginning_waits(tmp_path: Path) -> None:
    tried = Tried(own_study(), tmp_path / "federation", **OWN)
    samples = dict(zip("abcd", [*own_clients(), own_clients()[0]], strict=True))
    nodes = {
        i: Node(client_app(tried.folder, lambda node: samples[node["name"]]), tried.own_node(name).config)
        for i, name in enumerate("abc", start=1)
    }

    class Late(LocalGrid):
        def push_messages(self, messages):
            if tried.events("round"):
                self.nodes.setdefault(9, Node(self.nodes[1].app, tried.own_node("d").config))
            return super().push_messages(messages)

    tried.serve(nodes, Late)
    refused = tried.events("node refused")
    assert [event["reason"] for event in refused] == ["d: came after the federation had begun, and waits for the next"]


def test_a_client_whose_samples_have_changed_is_refused(tmp_path: Path) -> None:
    tried = Tried(own_study(), tmp_path / "federation", deadline=3.0, quorum=1.0, **OWN)
    samples = dict(zip("abc", own_clients(), strict=True))
    nodes = {
        i: Node(client_app(tried.folder, lambda node: samples[node["name"]]), tried.own_node(name).config)
        for i, name in enumerate("abc", start=1)
    }

    class Changing(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == "1":
                samples["b"] = tuple(part[:2] for part in samples["b"])
                raise KeyboardInterrupt
            return found

    with pytest.raises(KeyboardInterrupt):
        tried.serve(nodes, Changing)
    with pytest.raises(RoundFailedError):
        tried.serve(nodes)
    reasons = [event["reason"] for event in tried.events("node refused")]
    assert reasons == ["b: has 2 samples, and had 4 when the federation began"]


def test_a_broken_program_at_a_client_tells_nothing_of_its_samples(tmp_path: Path) -> None:
    def broken(node):
        raise ValueError("patient 17")

    tried = Tried(own_study(), tmp_path / "federation", wait=0.3, **OWN)
    with pytest.raises(GatheringError, match="node 4 is none: ValueError, of which the client's log has more") as e:
        tried.serve({4: Node(client_app(tried.folder, broken), tried.own_node("a").config)})
    assert "17" not in str(e.value)


def test_a_node_that_was_refused_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operator mends it while the server waits."""
    monkeypatch.setattr(transport, "AGAIN", 0.05)
    tried = Tried(own_study(rounds=1), tmp_path / "federation", **OWN)
    samples = dict(zip("abc", own_clients(), strict=True))
    asked = []

    def mended(node):
        asked.append(node["name"])
        return (samples[node["name"]][0][:, :4] if len(asked) < 4 else samples[node["name"]][0]), samples[node["name"]][
            1
        ]

    nodes = {i: Node(client_app(tried.folder, mended), tried.own_node(n).config) for i, n in enumerate("abc", start=1)}
    tried.serve(nodes)
    assert len(tried.events("node refused")) == 3
    assert "samples have shape (4,), the study's (6,)" in tried.events("node refused")[0]["reason"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [({"quorum": 0.0}, "run-config: quorum"), ({"deadline": -1}, "run-config: deadline"),
     ({"clients": 4}, "clients is 4, and the study's data.clients 5: not equal"),
     ({"shape": "3x3"}, "shape and classes go together"), ({"shape": "3 3", "classes": 2}, "shape must be up to four"),
     ({"test": "folder"}, "test goes with own samples"), ({"rounds": 3}, "run-config: rounds: unknown key"),
     ({"wait": True}, "wait must be a number")],
)  # fmt: skip
def test_settings_that_make_no_sense(tmp_path: Path, settings, line: str) -> None:
    with failing(InputError, line):
        _ = Tried(study_of(), tmp_path / "federation", **settings).study


@pytest.mark.parametrize(
    ("config", "line"),
    [({"partition-id": 0}, "partition-id does not go with this study, whose clients have their own samples"),
     ({}, "name 'None' must be up to 64 letters"), ({"name": "../x"}, "name '../x' must be up to 64 letters"),
     ({"name": "a"}, "node-config: data is missing"), ({"name": "a", "data": "none"}, "none/x.npy cannot be read"),
     ({"name": "a", "colour": "red"}, "node-config: colour: unknown key")],
)  # fmt: skip
def test_node_configurations_that_make_no_sense(tmp_path: Path, config, line: str) -> None:
    tried = Tried(own_study(), tmp_path / "federation", wait=0.2, **OWN)
    with failing(GatheringError, line):
        tried.serve({4: Node(client_app(tried.folder), config)})


def test_own_samples_that_are_not_plain_arrays(tmp_path: Path) -> None:
    """Archives, objects and files of other kinds are refused, and nothing in them is run."""
    folder = tmp_path / "a"
    folder.mkdir()
    np.save(folder / "y.npy", np.zeros(3, int))
    tried = Tried(own_study(), tmp_path / "federation", wait=0.2, **OWN)
    nodes = {4: tried.own_node("a", data=str(folder))}
    np.save(folder / "x.npy", np.array([{"a": 1}] * 3, dtype=object), allow_pickle=True)
    with pytest.raises(GatheringError, match=r"x\.npy cannot be read as an array"):
        tried.serve(nodes)
    with (folder / "x.npy").open("wb") as file:
        np.savez(file, np.zeros((3, 6)))
    with pytest.raises(GatheringError, match="is an archive of arrays, expected one array"):
        tried.serve(nodes)


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    tried = Tried(study_of(rounds=1), tmp_path / "federation")
    tried.serve()
    other = Tried(study_of(rounds=1, seed=3), tmp_path / "other", out=str(tried.out))
    with failing(InputError, "holds another federation: seed"):
        other.serve()
    runner.run(study_of(rounds=1), tmp_path / "run")
    with failing(InputError, "holds a run; choose another folder"):
        Tried(study_of(), tmp_path / "third", out=str(tmp_path / "run")).serve()


def test_records_lie_in_the_users_folder_if_no_other_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert NodeSettings().kept == tmp_path / "fedflat" / "federations"
    assert NodeSettings(state="~/x").kept == Path.home() / "x"


def test_arrays_are_bounded_in_introductions_and_in_answers(tmp_path: Path) -> None:
    """One piece, named ten thousand times: refused before it is put together, whatever it comes with."""
    seen = []

    def named_often(number, contents):
        kept = next((n for n, content in sorted(contents.items()) if content.startswith(b"Array ")), None)
        if kept is None:
            return contents
        head, _, body = contents[kept].partition(b"\x00")
        text = json.dumps(json.loads(body) | {"arraychunk_ids": [0] * 10**4}).encode()
        return {**contents, kept: head.rpartition(b" ")[0] + f" {len(text)}".encode() + b"\x00" + text}

    def hostile(message, context):
        content = RecordDict({"x": ArrayRecord({"x": Array("<f4", (73,), "fedflat.plain", bytes(292))})})
        seen.append(message.metadata.message_type)
        return Message(content, reply_to=message)

    tried = Tried(study_of(participation=1.0, rounds=1), tmp_path / "federation")
    tried.nodes[100].tamper = named_often
    tried.nodes[105] = Node(hostile, {}, tamper=named_often)
    tried.serve()
    assert seen == ["query"]
    [refused] = tried.events("node refused")
    assert "its reply cannot be read: ValueError: an array has 2,920,000 bytes, 0 are the most" in refused["reason"]
    [missing] = [event["missing"] for event in tried.events("round")]
    assert list(missing) == ["client-0"]
    assert re.search(r"an array has [\d,]+ bytes, [\d,]+ are the most", missing["client-0"])


def test_a_node_that_is_busy_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the server has come back, clients may still be at an order of before, and say nothing until it is done."""
    monkeypatch.setattr(transport, "ABSENT", 0.2)
    tried = Tried(study_of(method="scaffold", participation=1.0, rounds=2), tmp_path / "federation", deadline=20.0)

    class Ending(LocalGrid):
        def pull_messages(self, message_ids):
            if tried.events("round"):
                raise KeyboardInterrupt
            return super().pull_messages(message_ids)

    class Busy(LocalGrid):
        begin = time.monotonic()

        def pull_messages(self, message_ids):
            return super().pull_messages(message_ids) if time.monotonic() - self.begin > 1.5 else []

    with pytest.raises(KeyboardInterrupt):
        tried.serve(grid=Ending)
    assert [event["t"] for event in tried.events("round")] == [0]
    Busy.begin = time.monotonic()
    assert tried.serve(grid=Busy) == simulated(tried.spec, tmp_path / "simulation")


def test_an_order_is_not_sent_for_ever(tmp_path: Path) -> None:
    """A node that answers each order as the network answers for one that has gone."""

    class Gone(LocalGrid):
        orders = 0

        def push_messages(self, messages):
            messages = list(messages)
            numbers = super().push_messages(messages)
            if messages[0].metadata.message_type == "train" and messages[0].metadata.dst_node_id == 102:
                Gone.orders += 1
                node = self.nodes[102]
                self.lose(102, messages[0])
                self.nodes[102] = node
            return numbers

    tried = Tried(study_of(participation=1.0, rounds=1), tmp_path / "federation", deadline=20.0)
    tried.serve(grid=Gone)
    assert tried.events("round")[0]["missing"] == {"client-2": "its node has gone"}
    assert Gone.orders == transport.TIMES


def test_the_federation_has_as_many_members_as_it_was_to_have(tmp_path: Path) -> None:
    """All come at once, and one is too many."""
    tried = Tried(own_study(rounds=1), tmp_path / "federation", **OWN)
    samples = dict(zip("abcd", [*own_clients(), own_clients()[0]], strict=True))
    app = client_app(tried.folder, lambda node: samples[node["name"]])
    tried.serve({i: Node(app, tried.own_node(name).config) for i, name in enumerate("abcd", start=1)})
    assert tried.events("begun")[0]["clients"] == 3
    reasons = [event["reason"] for event in tried.events("node refused")]
    assert reasons == ["d: came after the federation had begun, and waits for the next"]


def test_events_are_read_whatever_was_left_half_written(tmp_path: Path) -> None:
    event_log.EventLog(tmp_path).tell("one")
    with (tmp_path / event_log.FILE).open("a") as file:
        file.write('{"event": "tw')
    assert [event["event"] for event in event_log.read(tmp_path)] == ["one"]
    event_log.EventLog(tmp_path).tell("three")
    assert [event["event"] for event in event_log.read(tmp_path)] == ["one", "three"]
