"""Hostile replies through Flower's own decoder: refused by name, with the model and the memory as they were."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import fedflat as ff
from fedflat.federation.client_registry import ClientRegistry
from fedflat.federation.flower.bounds import arrays_up_to
from fedflat.federation.flower.records import to_records
from fedflat.federation.flower.transport import FlowerTransport
from fedflat.federation.messages import ClientInfo, TrainReply
from fedflat.federation.server import FederatedServer, RoundFailedError, RoundTerms
from fedflat.methods import find
from support.federation import federation
from support.flower_fixtures import hurried  # noqa: F401 (a fixture)
from support.local_grid import Contents, LocalGrid, Node
from support.malicious_replies import MUTATIONS
from support.transports import DIGEST, InProcess, coordinator, names, participants

CLIENT = ff.Client(lr=0.1, epochs=1, batch_size=4)
FedSMOO = find("FedSMOO")
MOST = 1000  # bytes of an array; the model's has 292


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainReply]:
    """What all six clients answer in the first round."""
    found: dict[str, TrainReply] = {}
    crowd = participants(FedSMOO(), tmp_path_factory.mktemp("clients"), CLIENT)
    coordinator(FedSMOO(), CLIENT, rule=1.0).round(InProcess(crowd, found.setdefault))
    return found


def node(name: str, samples: int, reply: Callable[[Message], RecordDict]) -> Node:
    """A node that introduces itself honestly, and gives `reply` to orders."""
    said = to_records(ClientInfo(name, samples, (6,), DIGEST, "1"))

    def app(message: Message, context: object) -> Message:
        return Message(said if message.metadata.message_type == "query" else reply(message), reply_to=message)

    return Node(app, {})


def nodes(replies: dict[str, Callable[[Message], RecordDict]]) -> dict[int, Node]:
    sizes = dict(zip(names(federation()), federation().sizes.tolist(), strict=True))
    return {i: node(name, sizes[name], reply) for i, (name, reply) in enumerate(replies.items(), start=2)}


def round_of(grid: LocalGrid, quorum: float = 0.1) -> tuple[FederatedServer, dict[str, str]]:
    """A round with all six; who is missing, and why."""
    server = coordinator(FedSMOO(), CLIENT, rule=1.0, terms=RoundTerms(deadline=20.0, quorum=quorum))
    carrier = FlowerTransport(grid, ClientRegistry((6,), DIGEST, "1"), lambda *_, **__: None)
    carrier.gather(6, 20.0)
    with arrays_up_to(MOST):
        return server, dict(server.round(carrier).missing)


def sendable(rng: random.Random, answer: TrainReply) -> RecordDict:
    """A lie of a random kind, among those that Flower's own records can hold."""
    while True:
        try:
            return to_records(MUTATIONS[rng.choice(sorted(MUTATIONS))](rng, answer))
        except TypeError:
            continue


def numpy_arrays(rng: random.Random, answer: TrainReply) -> RecordDict:
    """The right numbers as Flower's users send them, with a header."""
    content = to_records(answer)
    content["up"] = ArrayRecord({name: Array(np.frombuffer(x.data, "<f4")) for name, x in answer.up.items()})
    return content


def without(record: str) -> Callable[[random.Random, TrainReply], RecordDict]:
    def lie(rng: random.Random, answer: TrainReply) -> RecordDict:
        content = to_records(answer)
        del content[record]
        return content

    return lie


def added(rng: random.Random, answer: TrainReply) -> RecordDict:
    content = to_records(answer)
    content[f"x{rng.random()}"] = MetricRecord({"a": 1.0})
    return content


def swapped(rng: random.Random, answer: TrainReply) -> RecordDict:
    """Records of other kinds than expected."""
    content = to_records(answer)
    content[rng.choice(["up", "answer"])] = rng.choice([MetricRecord({"a": 1.0}), ConfigRecord({"a": "b"})])
    return content


RECORDS = {
    "a lie": sendable, "numpy's header": numpy_arrays, "no vectors": without("up"), "no answer": without("answer"),
    "one record more": added, "records swapped": swapped, "nothing": lambda rng, answer: RecordDict(),
}  # fmt: skip


def objects(contents: Contents, kind: bytes) -> list[str]:
    return sorted(number for number, content in contents.items() if content.startswith(kind))


def tampered(rng: random.Random, contents: Contents) -> Contents:
    """Bytes changed on the way, as no node of Flower's own would send them."""
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
    """An array whose description says something else, such as one piece a hundred thousand times."""
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
    """A description so deep that reading it ends where Python's stack does."""
    number = rng.choice(objects(contents, rng.choice([b"Array ", b"ArrayRecord ", b"RecordDict "])))
    text = b"[" * 10**5
    return {**contents, number: contents[number].partition(b"\x00")[0] + b"\x00" + text}


ON_THE_WAY = {"tampered": tampered, "redescribed": redescribed, "nested": nested}


def test_two_thousand_mutated_replies(honest: dict[str, TrainReply]) -> None:
    """Rounds of six of which all but one lie: none is heard, all are named, the model is that of the honest one."""
    rng, liars, expected, count = random.Random(0), sorted(honest)[1:], None, 0
    tracemalloc.start()
    while count < 2000:
        kinds = {name: rng.choice(sorted(RECORDS | ON_THE_WAY)) for name in liars}
        replies = {name: lambda message, answer=answer: to_records(answer) for name, answer in honest.items()}
        for name, kind in kinds.items():
            if kind in RECORDS:
                replies[name] = lambda message, name=name, kind=kind: RECORDS[kind](rng, honest[name])
        there = nodes(replies)
        for number, name in enumerate(replies, start=2):
            if kinds.get(name) in ON_THE_WAY:
                there[number].tamper = only_answers(ON_THE_WAY[kinds[name]], rng)
        server, missing = round_of(LocalGrid(there, {}))
        assert set(missing) == set(liars), kinds
        assert all(0 < len(why) < 700 for why in missing.values()), "what was sent is not repeated at length"
        expected = server.w.clone() if expected is None else expected
        assert torch.equal(server.w, expected)
        count += len(liars)
    assert tracemalloc.get_traced_memory()[1] < 60 * 10**6
    tracemalloc.stop()


def only_answers(change: Callable[[random.Random, Contents], Contents], rng: random.Random):
    """`change` for messages with vectors; introductions stay."""
    return lambda number, contents: change(rng, contents) if objects(contents, b"Array ") else contents


@pytest.mark.parametrize("kind", sorted(RECORDS | ON_THE_WAY))
def test_every_kind_alone_fails_the_round_and_leaves_the_model(kind: str, honest: dict[str, TrainReply]) -> None:
    rng = random.Random(1)
    change = RECORDS.get(kind, lambda rng, answer: to_records(answer))
    replies = {name: lambda message, x=x: change(rng, x) for name, x in honest.items()}
    there = nodes(replies)
    for one in there.values() if kind in ON_THE_WAY else ():
        one.tamper = only_answers(ON_THE_WAY[kind], rng)
    with pytest.raises(RoundFailedError, match="0 of 6 clients have answered"):
        round_of(LocalGrid(there, {}))


def test_a_reply_for_another_node_does_not_count(honest: dict[str, TrainReply]) -> None:
    """A node that answers orders that were not its own."""
    there = nodes({name: lambda message, answer=answer: to_records(answer) for name, answer in honest.items()})
    straight = there[3].app

    def pretending(message: Message, context: object) -> Message:
        reply = straight(message, context)
        if message.metadata.message_type == "train":
            reply.metadata.__dict__["_src_node_id"] = 6
        return reply

    there[3].app = pretending
    assert round_of(LocalGrid(there, {}))[1] == {list(honest)[1]: "its reply came from node 6"}


def test_an_array_of_the_largest_size_is_taken() -> None:
    """The bound is on what comes of the pieces, not on how many there are."""
    array = Array("<f4", (73,), "fedflat.plain", bytes(292))
    (chunk,) = (thing for _, thing in array.slice_array())
    children = {chunk.object_id: chunk}
    with arrays_up_to(292):
        assert Array.inflate(array.deflate(), children).data == bytes(292)
    with arrays_up_to(291), pytest.raises(ValueError, match="an array has 292 bytes, 291 are the most"):
        Array.inflate(array.deflate(), children)
    assert Array.inflate(array.deflate(), children).data == bytes(292), "as before, outside"


def test_introductions_that_lie_are_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    census = ClientRegistry((6,), DIGEST, "1")
    right = {"name": "clinic-a", "samples": 5, "shape": (6,), "digest": DIGEST, "version": "1"}
    wrong = {
        "name": ["", "../a", "a/b", "a" * 65, "ä", ".hidden", 5], "samples": [0, -1, 2**60, 1.5, True, "5"],
        "shape": [(7,), (6, 1), (), "6"], "digest": ["other", 3], "version": ["2"],
    }  # fmt: skip
    for key, values in wrong.items():
        for value in values:
            assert not census.hear(rng.randrange(10**6), ClientInfo(**right | {key: value})), (key, value)
    assert len(census.refused) == sum(map(len, wrong.values()))
    assert census.members == {}
    assert census.hear(3, ClientInfo(**right))
    assert census.members == {"clinic-a": 5}
