"""Replies that are announced and never sent: they take a bounded number of threads, for a bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from flwr.app import RecordDict
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid
from flwr.superlink.grid.http_grid import HttpGrid

from fedflat.federation.flower import message_queue
from fedflat.federation.flower.bounds import pulling_until
from fedflat.federation.flower.message_queue import MessageQueue, Sent


class Announcing:
    """What a SuperLink says of a reply whose parts never come."""

    def __init__(self) -> None:
        self.asked = 0

    def PullMessages(self, request):
        reply = MessageProto(metadata=Metadata(message_id="m", reply_to_message_id=request.message_ids[0]))
        return PullAppMessagesResponse(messages_list=[reply], message_object_trees=[ObjectTree(object_id="x")])

    def PullObject(self, request):
        self.asked += 1
        return PullObjectResponse(object_found=True, object_available=False)


def waiting_grid() -> HttpGrid:
    grid = HttpGrid(token="none", insecure=True)
    grid._run, grid._client = Run.create_empty(7), Announcing()
    return grid


def test_flowers_own_grid_stops_waiting_at_the_deadline() -> None:
    """Its looks are a second apart at first, so it ends within some seconds; by itself it would wait for two hours."""
    begin = time.monotonic()
    with pulling_until(begin + 1.0):
        [reply] = waiting_grid().pull_messages(["a"])
    assert 1.0 < time.monotonic() - begin < 6.0
    assert reply.has_error()
    assert "timeout or retry limit reached" in reply.error.reason


def test_without_a_deadline_it_waits_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the block, and in other threads."""
    given = []
    monkeypatch.setattr("fedflat.federation.flower.bounds._pull_objects", lambda *_, **named: given.append(named) or {})
    with pulling_until(time.monotonic() + 1.0):
        http_grid.pull_objects(["a"], None)
        other = threading.Thread(target=http_grid.pull_objects, args=(["a"], None))
        other.start()
        other.join()
    http_grid.pull_objects(["a"], None)
    assert [sorted(named) for named in given] == [["max_time"], [], []]
    assert 0.5 < given[0]["max_time"] <= 1.0


class Holding:
    """A grid on which the replies of some nodes never come whole."""

    def __init__(self, holding: set[int]) -> None:
        self.holding, self.sent, self.end = holding, {}, threading.Event()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3

    def push_messages(self, messages) -> Iterator[str]:
        for message in messages:
            number = f"m{len(self.sent)}"
            self.sent[number] = message
            yield number

    def pull_messages(self, numbers):
        message = self.sent[numbers[0]]
        if message.metadata.dst_node_id in self.holding:
            assert self.end.wait(30), "a thread that is left must end"
            return []
        whole = SimpleNamespace(src_node_id=message.metadata.dst_node_id)
        return [SimpleNamespace(has_error=lambda: False, metadata=whole, content=RecordDict())]


def threads() -> int:
    return sum(thread.name == message_queue.THREAD for thread in threading.enumerate())


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holding]:
    monkeypatch.setattr(message_queue, "PATIENCE", 0.01)
    grid = Holding(set(range(100, 200)))
    yield grid
    grid.end.set()
    end = time.monotonic() + 10
    while threads() and time.monotonic() < end:
        time.sleep(0.01)


def collected(box: MessageQueue) -> list[int]:
    return [sent.node for sent, _ in box.collect()]


def test_a_node_takes_one_thread_however_many_rounds_it_holds_up(holding: Holding) -> None:
    """Others are heard in each of them."""
    box = MessageQueue(holding)
    for t in range(10):
        box.forget("train")
        for node, name in ((100, "a"), (2, "b")):
            box.send(Sent(node, "train", name, str(t), time.monotonic() + 60), RecordDict())
        assert [node for _ in range(5) for node in collected(box)] == [2]
        assert threads() == 1


def test_a_node_that_has_ended_its_reply_is_heard_again(holding: Holding) -> None:
    box = MessageQueue(holding)
    box.send(Sent(100, "train", "a", "0", time.monotonic() + 60), RecordDict())
    assert collected(box) == []
    holding.holding.clear()
    box.forget("train")
    box.send(Sent(100, "train", "a", "1", time.monotonic() + 60), RecordDict())
    assert collected(box) == []
    assert threads() == 1
    holding.end.set()
    end = time.monotonic() + 10
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert collected(box) == [100]


def test_nodes_that_nobody_knows_take_a_bounded_number_of_threads(holding: Holding) -> None:
    """However many there are; a member is heard beside them."""
    box = MessageQueue(holding)
    for node in range(100, 200):
        box.send(Sent(node, "query", "", "", time.monotonic() + 60), RecordDict())
    box.send(Sent(2, "train", "b", "0", time.monotonic() + 60), RecordDict())
    assert [node for _ in range(3) for node in collected(box)] == [2]
    assert threads() == message_queue.STRANGERS
