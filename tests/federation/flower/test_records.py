"""Hostile replies through Flower's own decoder: rejected by name, with the model and the memory as they were."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedflat as ff
from fedflat.federation.flower.internals import array_limit
from fedflat.federation.flower.records import to_records
from fedflat.federation.flower.transport import FlowerTransport
from fedflat.federation.membership import ClientRegistry
from fedflat.federation.messages import ClientInfo, Failure, TrainReply, TrainRequest
from fedflat.federation.server import FederatedServer, RoundFailedError, RoundTerms
from fedflat.methods import find
from support.effort import effort
from support.federation import federation
from support.local_grid import Contents, LocalGrid, Node
from support.malicious_replies import MUTATIONS
from support.transports import DIGEST, InProcessTransport, client_names, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
FedSMOO = find("FedSMOO")
ARRAY_BYTES = 1000  # bytes of an array; the model's has 292


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainReply]:
    """What all six clients reply in the first round."""
    found: dict[str, TrainReply] = {}
    clients = federated_clients(FedSMOO(), tmp_path_factory.mktemp("clients"), CLIENT)
    federated_server(FedSMOO(), CLIENT, rule=1.0).round(InProcessTransport(clients, found.setdefault))
    return found


def node(name: str, samples: int, reply: Callable[[Message], RecordDict]) -> Node:
    """A node that sends an honest ClientInfo, and `reply` to requests."""
    info = to_records(ClientInfo(name, samples, (6,), DIGEST, "1"))

    def app(message: Message, context: object) -> Message:
        return Message(info if message.metadata.message_type == "query" else reply(message), reply_to=message)

    return Node(app, {})


def nodes(replies: dict[str, Callable[[Message], RecordDict]]) -> dict[int, Node]:
    sizes = dict(zip(client_names(federation()), federation().sizes.tolist(), strict=True))
    return {i: node(name, sizes[name], reply) for i, (name, reply) in enumerate(replies.items(), start=2)}


def round_of(grid: LocalGrid, quorum: float = 0.1) -> tuple[FederatedServer, dict[str, str]]:
    """The server after a round with all six clients; the missing ones, with the reasons."""
    server = federated_server(FedSMOO(), CLIENT, rule=1.0, terms=RoundTerms(deadline=20.0, quorum=quorum))
    transport = FlowerTransport(grid, ClientRegistry((6,), DIGEST, "1"), lambda *_, **__: None)
    transport.gather(6, 20.0)
    with array_limit(ARRAY_BYTES):
        return server, dict(server.round(transport).missing)


def sendable(rng: random.Random, reply: TrainReply) -> RecordDict:
    """A mutation of a random kind, among those that Flower's own records can hold."""
    while True:
        try:
            return to_records(MUTATIONS[rng.choice(sorted(MUTATIONS))](rng, reply))
        except TypeError:
            continue


def numpy_arrays(rng: random.Random, reply: TrainReply) -> RecordDict:
    """The right numbers as Flower's users send them, with a header."""
    content = to_records(reply)
    content["up"] = ArrayRecord({name: Array(np.frombuffer(x.data, "<f4")) for name, x in reply.up.items()})
    return content


def without(record: str) -> Callable[[random.Random, TrainReply], RecordDict]:
    def change(rng: random.Random, reply: TrainReply) -> RecordDict:
        content = to_records(reply)
        del content[record]
        return content

    return change


def added(rng: random.Random, reply: TrainReply) -> RecordDict:
    content = to_records(reply)
    content[f"x{rng.random()}"] = MetricRecord({"a": 1.0})
    return content


def swapped(rng: random.Random, reply: TrainReply) -> RecordDict:
    """Records of other kinds than expected."""
    content = to_records(reply)
    content[rng.choice(["up", "answer"])] = rng.choice([MetricRecord({"a": 1.0}), ConfigRecord({"a": "b"})])
    return content


RECORDS = {
    "mutated": sendable, "numpy's header": numpy_arrays, "no vectors": without("up"), "no reply": without("answer"),
    "one record more": added, "records swapped": swapped, "nothing": lambda rng, reply: RecordDict(),
}  # fmt: skip


def objects(contents: Contents, kind: bytes) -> list[str]:
    return sorted(number for number, content in contents.items() if content.startswith(kind))


def tampered(rng: random.Random, contents: Contents) -> Contents:
    """Change bytes of a message in a way that Flower's own programs never do."""
    number = rng.choice(objects(contents, rng.choice([b"ArrayRecord ", b"ArrayChunk ", b"RecordDict ", b"Config"])))
    content, way = contents[number], rng.randrange(4)
    if way == 0:
        return {**contents, number: content[: rng.randrange(len(content) - 1)]}
    if way == 1:
        return {**contents, number: rng.randbytes(rng.randrange(400))}
    if way == 2:
        return {name: x for name, x in contents.items() if name != number}
    return {**contents, number: rng.choice([b"Array", b"Message", b"os.system"]) + content[content.index(b" ") :]}


def redescribed(rng: random.Random, contents: Contents) -> Contents:
    """Change the description of an array, for example to list one chunk a hundred thousand times."""
    number = rng.choice(objects(contents, b"Array "))
    head, _, body = contents[number].partition(b"\x00")
    facts = json.loads(body)
    changes = [
        {"arraychunk_ids": [0] * rng.choice([2, 4, 1000, 10**5])}, {"arraychunk_ids": [1]}, {"arraychunk_ids": []},
        {"arraychunk_ids": ["0"]}, {"shape": [73, 10**12]}, {"shape": "73"}, {"shape": [-73]}, {"shape": None},
        {"dtype": "|O"}, {"dtype": None}, {"stype": "numpy.ndarray"}, {"stype": "pickle"},
    ]  # fmt: skip
    text = json.dumps(facts | rng.choice(changes)).encode()
    return {**contents, number: head.rpartition(b" ")[0] + f" {len(text)}".encode() + b"\x00" + text}


def nested(rng: random.Random, contents: Contents) -> Contents:
    """Replace a description by JSON that is nested deeper than Python's stack."""
    number = rng.choice(objects(contents, rng.choice([b"Array ", b"ArrayRecord ", b"RecordDict "])))
    text = b"[" * 10**5
    return {**contents, number: contents[number].partition(b"\x00")[0] + b"\x00" + text}


BYTES = {"tampered": tampered, "redescribed": redescribed, "nested": nested}


@pytest.mark.slow
def test_mutated_replies_are_rejected(honest: dict[str, TrainReply]) -> None:
    """In rounds of six, five replies are mutated: all five are rejected by name, and the model is that of the sixth."""
    rng, malicious, expected, count = random.Random(0), sorted(honest)[1:], None, 0
    tracemalloc.start()
    while count < effort(100, 2000):
        kinds = {name: rng.choice(sorted(RECORDS | BYTES)) for name in malicious}
        replies = {name: lambda message, reply=reply: to_records(reply) for name, reply in honest.items()}
        for name, kind in kinds.items():
            if kind in RECORDS:
                replies[name] = lambda message, name=name, kind=kind: RECORDS[kind](rng, honest[name])
        network = nodes(replies)
        for number, name in enumerate(replies, start=2):
            if kinds.get(name) in BYTES:
                network[number].tamper = only_replies(BYTES[kinds[name]], rng)
        server, missing = round_of(LocalGrid(network, {}))
        assert set(missing) == set(malicious), kinds
        assert all(0 < len(reason) < 700 for reason in missing.values()), "what was sent is not repeated at length"
        expected = server.w.clone() if expected is None else expected
        assert torch.equal(server.w, expected)
        count += len(malicious)
    assert tracemalloc.get_traced_memory()[1] < 60 * 10**6
    tracemalloc.stop()


def only_replies(change: Callable[[random.Random, Contents], Contents], rng: random.Random):
    """Apply `change` to messages with vectors, not to a ClientInfo."""
    return lambda number, contents: change(rng, contents) if objects(contents, b"Array ") else contents


@pytest.mark.parametrize("kind", sorted(RECORDS | BYTES))
def test_every_kind_alone_fails_the_round_and_leaves_the_model(kind: str, honest: dict[str, TrainReply]) -> None:
    rng = random.Random(1)
    change = RECORDS.get(kind, lambda rng, reply: to_records(reply))
    replies = {name: lambda message, x=x: change(rng, x) for name, x in honest.items()}
    network = nodes(replies)
    for one in network.values() if kind in BYTES else ():
        one.tamper = only_replies(BYTES[kind], rng)
    with pytest.raises(RoundFailedError, match="0 of 6 clients replied"):
        round_of(LocalGrid(network, {}))


def test_a_reply_from_another_node_is_rejected(honest: dict[str, TrainReply]) -> None:
    """A node that replies to requests that were sent to another one."""
    network = nodes({name: lambda message, reply=reply: to_records(reply) for name, reply in honest.items()})
    straight = network[3].app

    def pretending(message: Message, context: object) -> Message:
        reply = straight(message, context)
        if message.metadata.message_type == "train":
            reply.metadata.__dict__["_src_node_id"] = 6
        return reply

    network[3].app = pretending
    assert round_of(LocalGrid(network, {}))[1] == {list(honest)[1]: "its reply came from node 6"}


def test_names_on_the_network_do_not_change() -> None:
    """Nodes of other versions read them too, at least to find that the version is another one."""
    messages = {
        "order": TrainRequest(0, -1, (-1,), 0, 1.0, 6, "0" * 16, DIGEST),
        "answer": TrainReply(0, 5, 1, 1, 0.5),
        "introduction": ClientInfo("a", 5, (6,), DIGEST, "1"),
        "failure": Failure("no memory"),
    }
    names = {
        "order": {"t", "since", "safe", "number", "share", "sampled", "federation", "digest"},
        "answer": {"t", "samples", "steps", "gradients", "drift"},
        "introduction": {"name", "samples", "shape", "digest", "version"},
        "failure": {"reason"},
    }
    vectors = {"order": {"down"}, "answer": {"up"}}
    for record, message in messages.items():
        content = to_records(message)
        assert set(content) == {record} | vectors.get(record, set())
        assert set(content[record]) == names[record]
