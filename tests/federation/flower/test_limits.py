"""Limits on arrays, and on how long Flower waits for them."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from fedflat.federation.flower import message_queue
from fedflat.federation.flower.internals import array_limit, pull_deadline, within_deadline
from fedflat.federation.flower.message_queue import MessageQueue, SentMessage
from support.flower_fixtures import GridFederation, study_of, wait_for
from support.local_grid import Node


def test_an_array_of_the_largest_size_is_accepted() -> None:
    """The limit is on the size of the assembled array, not on the number of its chunks."""
    array = Array("<f4", (73,), "fedflat.plain", bytes(292))
    (chunk,) = (thing for _, thing in array.slice_array())
    children = {chunk.object_id: chunk}
    with array_limit(292):
        assert Array.inflate(array.deflate(), children).data == bytes(292)
    with array_limit(291), pytest.raises(ValueError, match="an array has 292 bytes, 291 are the most"):
        Array.inflate(array.deflate(), children)
    assert Array.inflate(array.deflate(), children).data == bytes(292), "outside the block there is no limit"


def test_a_chunk_is_found_by_its_place_as_flower_finds_it() -> None:
    """Chunks may be listed twice and counted from the end, so that another chunk is taken at a place than is there."""
    long, short = ArrayChunk(bytes(100)), ArrayChunk(b"1")
    children = {long.object_id: long, short.object_id: short}
    body = json.dumps({"dtype": "<f4", "shape": [1], "stype": "fedflat.plain", "arraychunk_ids": [-1] * 10 + [-2]})
    head = f"Array {long.object_id},{short.object_id},{long.object_id} {len(body)}"
    content = f"{head}\0{body}".encode()
    with array_limit(1001):
        assert len(Array.inflate(content, children).data) == 1001
    with array_limit(1000), pytest.raises(ValueError, match="an array has 1,001 bytes, 1,000 are the most"):
        Array.inflate(content, children)


def test_arrays_are_limited_in_all_replies(tmp_path: Path) -> None:
    """One chunk, listed ten thousand times: refused before the array is assembled, in replies of both kinds."""
    seen = []

    def repeated(number, contents):
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

    federation = GridFederation(study_of(participation=1.0, rounds=1), tmp_path / "federation")
    federation.nodes[100].tamper = repeated
    federation.nodes[105] = Node(hostile, {}, tamper=repeated)
    federation.serve()
    assert seen == ["query"]
    [refused] = federation.events("node refused")
    assert "its reply cannot be read: ValueError: an array has 2,920,000 bytes, 0 are the most" in refused["reason"]
    [missing] = [event["missing"] for event in federation.events("round")]
    assert list(missing) == ["client-0"]
    assert re.search(r"an array has [\d,]+ bytes, [\d,]+ are the most", missing["client-0"])


class Announcing:
    """A client of a SuperLink that announces a reply of which only some parts come, each of 100 bytes."""

    def __init__(self, parts: int = 0) -> None:
        self.asked, self.parts = 0, parts

    def PullMessages(self, request):
        reply = MessageProto(metadata=Metadata(message_id="m", reply_to_message_id=request.message_ids[0]))
        tree = ObjectTree(object_id="x", children=[ObjectTree(object_id=f"part {i}") for i in range(self.parts)])
        return PullAppMessagesResponse(messages_list=[reply], message_object_trees=[tree])

    def PullObject(self, request):
        self.asked += 1
        if request.object_id.startswith("part"):
            return PullObjectResponse(object_found=True, object_available=True, object_content=bytes(100))
        return PullObjectResponse(object_found=True, object_available=False)


def waiting_grid(parts: int = 0) -> HttpGrid:
    grid = HttpGrid(token="none", insecure=True)
    grid._run, grid._client = Run.create_empty(7), Announcing(parts)
    return grid


@pytest.mark.slow
def test_the_bytes_of_a_reply_that_is_not_complete_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three parts have come, and the last one never does; when the order is over, so is the count."""
    monkeypatch.setattr(message_queue, "PULL_SECONDS", 0.01)
    queue = MessageQueue(waiting_grid(parts=3))
    sent = SentMessage(5, "train", "clinic-a", "0", time.monotonic() + 1.0)
    queue._open["m"] = sent
    assert queue.received("clinic-a") == 0
    assert list(queue.collect()) == []
    wait_for("three parts", lambda: queue.received("clinic-a") == 300, 10)
    assert queue.received("clinic-b") == 0
    wait_for("the deadline", lambda: not list(queue.collect()) and not queue._open, 10)
    assert queue.received("clinic-a") == 0


@pytest.mark.slow
def test_flowers_own_grid_stops_waiting_at_the_deadline() -> None:
    """It looks once a second at first, so it stops within some seconds; by itself it would wait for two hours."""
    begin = time.monotonic()
    with pull_deadline(begin + 1.0):
        [reply] = waiting_grid().pull_messages(["a"])
    assert 1.0 < time.monotonic() - begin < 6.0
    assert reply.has_error()
    assert "timeout or retry limit reached" in reply.error.reason


def test_without_a_deadline_flower_waits_as_usual() -> None:
    """Outside the block, and in other threads."""
    given: list[dict[str, Any]] = []
    pull = within_deadline(lambda *_, **named: given.append(named) or {})
    with pull_deadline(time.monotonic() + 1.0):
        pull(["a"], pull_object_fn=len)
        other = threading.Thread(target=pull, args=(["a"],), kwargs={"pull_object_fn": len})
        other.start()
        other.join()
    pull(["a"], pull_object_fn=len)
    assert [sorted(named) for named in given] == [
        ["max_time", "pull_object_fn"],
        ["pull_object_fn"],
        ["pull_object_fn"],
    ]
    assert 0.5 < given[0]["max_time"] <= 1.0
    assert [named["pull_object_fn"] is len for named in given] == [False, True, True]
