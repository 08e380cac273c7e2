"""Replies that are announced and never sent: they use a bounded number of threads for a bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from flwr.app import RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedflat.federation.flower import message_queue
from fedflat.federation.flower.message_queue import MessageQueue, SentMessage
from support.flower_fixtures import wait_for


class StallingGrid:
    """A grid on which the replies of some nodes never come whole."""

    def __init__(self, stalling: set[int]) -> None:
        self.stalling, self.sent, self.end = stalling, {}, threading.Event()
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3

    def push_messages(self, messages) -> Iterator[str]:
        for message in messages:
            number = f"m{len(self.sent)}"
            self.sent[number] = message
            yield number

    def pull_messages(self, numbers):
        message = self.sent[numbers[0]]
        if message.metadata.dst_node_id in self.stalling:
            assert self.end.wait(30), "a thread that is left must end"
            return []
        whole = SimpleNamespace(src_node_id=message.metadata.dst_node_id)
        return [SimpleNamespace(has_error=lambda: False, metadata=whole, content=RecordDict())]


def threads() -> int:
    return sum(thread.name == message_queue.THREAD for thread in threading.enumerate())


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Iterator[StallingGrid]:
    monkeypatch.setattr(message_queue, "PULL_SECONDS", 0.01)
    stalling = StallingGrid(set(range(100, 200)))
    yield stalling
    stalling.end.set()
    wait_for("the ends of the threads", lambda: not threads())


def collected(queue: MessageQueue) -> list[int]:
    return [sent.node for sent, _ in queue.collect()]


def test_a_node_takes_one_thread_however_many_rounds_it_stalls(grid: StallingGrid) -> None:
    """The replies of others are collected in each round."""
    queue = MessageQueue(grid)
    for t in range(10):
        queue.cancel("train")
        for node, name in ((100, "a"), (2, "b")):
            queue.send(SentMessage(node, "train", name, str(t), time.monotonic() + 60), RecordDict())
        assert [node for _ in range(5) for node in collected(queue)] == [2]
        wait_for("the end of the thread of the node that replied", lambda: threads() == 1)


def test_a_node_that_completes_its_reply_is_asked_again(grid: StallingGrid) -> None:
    queue = MessageQueue(grid)
    queue.send(SentMessage(100, "train", "a", "0", time.monotonic() + 60), RecordDict())
    assert collected(queue) == []
    grid.stalling.clear()
    queue.cancel("train")
    queue.send(SentMessage(100, "train", "a", "1", time.monotonic() + 60), RecordDict())
    assert collected(queue) == []
    assert threads() == 1
    grid.end.set()
    wait_for("the ends of the threads", lambda: not threads())
    assert collected(queue) == [100]


def test_unknown_nodes_take_a_bounded_number_of_threads(grid: StallingGrid) -> None:
    """However many there are; the reply of a client is collected in spite of them."""
    queue = MessageQueue(grid)
    for node in range(100, 200):
        queue.send(SentMessage(node, "query", "", "", time.monotonic() + 60), RecordDict())
    queue.send(SentMessage(2, "train", "b", "0", time.monotonic() + 60), RecordDict())
    assert [node for _ in range(3) for node in collected(queue)] == [2]
    assert threads() == message_queue.UNKNOWN_SENDERS
