"""Sends messages to nodes and collects their replies; an unreadable or slow reply affects only its sender.

Flower does not limit the size of received arrays, and does not let callers limit the waiting time for them. This module
adds both limits by replacing functions of Flower 1.41.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import httpx
from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.superlink.grid import http_grid

from ...core.errors import printable
from ..membership import NodeKey
from ..messages import Failure

_thread = threading.local()
_flower_pull_objects = http_grid.pull_objects
NODE_GONE = Failure("its node has gone")  # if the network has lost the node, the message or the reply
_UNAVAILABLE = (3, 4, 5)  # Flower's error codes for a lost node, message or reply
ERROR_LENGTH = 200  # most characters of an error
THREAD = "fedflat reply"
PULL_SECONDS = 5.0  # of waiting for a reply; after that, a thread waits for it while the next reply is tried
UNKNOWN_SENDERS = 16  # threads that may wait for replies of nodes at which no client is registered


def _pull_objects(*arguments: Any, **named: Any) -> dict[str, bytes]:
    deadline, count = getattr(_thread, "deadline", None), getattr(_thread, "count", None)
    if deadline is not None:
        named["max_time"] = max(deadline - monotonic(), 0.0)
    if count is not None and "pull_object_fn" in named:
        named["pull_object_fn"] = _counting(named["pull_object_fn"], count)
    return _flower_pull_objects(*arguments, **named)


def _counting(pull: Callable[[str], bytes], count: Callable[[int], None]) -> Callable[[str], bytes]:
    def pull_and_count(object_id: str) -> bytes:
        content = pull(object_id)
        count(len(content))
        return content

    return pull_and_count


@contextmanager
def pull_deadline(deadline: float, count: Callable[[int], None] = lambda size: None) -> Iterator[None]:
    """Limit, inside the block, how long Flower waits in this thread for the rest of a reply.

    deadline: on the monotonic clock. Flower checks the time every few seconds, so it may stop a few seconds late.
    Without a deadline Flower waits for two hours.

    count: called with the size in bytes of each received part of the reply, from several threads.
    """
    # Flower's `pull_objects` has an argument for the deadline, but Flower's grid does not pass the argument on.
    http_grid.pull_objects = _pull_objects
    _thread.deadline, _thread.count = deadline, count
    try:
        yield
    finally:
        del _thread.deadline, _thread.count


@contextmanager
def array_limit(limit: int) -> Iterator[None]:
    """Raise ValueError inside the block for a received array of more than `limit` bytes, before it is assembled.

    Flower sends an array as chunks and a list of their order. A short list can name the same chunk many times, so the
    array may be much larger than its message.
    """
    original = Array.inflate

    def inflate(object_content: bytes, children: dict[str, Any] | None = None) -> Array:
        sizes = [len(chunk.data) for chunk in (children or {}).values()]
        _, _, body = object_content.partition(b"\x00")
        size = sum(sizes[chunk] for chunk in json.loads(body)["arraychunk_ids"])
        if size > limit:
            raise ValueError(f"an array has {size:,} bytes, {limit:,} are the most")
        return original(object_content, children)

    Array.inflate = inflate  # type: ignore[method-assign]
    try:
        yield
    finally:
        Array.inflate = original  # type: ignore[method-assign]


@dataclass(frozen=True)
class SentMessage:
    """A message to which a reply is expected."""

    node: int
    kind: str  # Flower's message type
    client: str  # client's name, or "" if the node's client is unknown
    group: str  # the round
    expires: float  # on the monotonic clock


class MessageQueue:
    """The messages of one federation that have been sent and not replied to."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open: dict[str, SentMessage] = {}  # by Flower's message id
        self._received: Counter[str] = Counter()  # bytes received of the reply to each message
        self._counting = threading.Lock()
        self._partial: dict[str, Future[list[Message]]] = {}  # replies that have arrived only in part
        self._pulls: list[tuple[SentMessage, Future[list[Message]]]] = []  # running threads, also for closed messages

    def nodes(self) -> dict[int, NodeKey]:
        """List the connected nodes with their keys."""
        return {
            node.node_id: NodeKey(node.name if node.HasField("name") else None, node.public_key)
            for node in self._grid.get_nodes()
        }

    def send(self, sent: SentMessage, content: RecordDict) -> bool:
        """Send a message; return whether the network has accepted it.

        A message is not accepted if the node has disconnected, or if the SuperLink restarts during the upload. When a
        message expires, the network deletes it and its reply.
        """
        ttl = max(sent.expires - monotonic(), 1.0)
        message = Message(content, sent.node, sent.kind, ttl=ttl, group_id=sent.group)
        try:
            (message_id,) = self._grid.push_messages([message])
        except ObjectPushError:  # the SuperLink keeps its list of uploads in memory only
            return False
        if message_id:
            self._open[message_id] = sent
        return bool(message_id)

    def received(self, client: str) -> int:
        """Return how many bytes of a client's incomplete reply have been received so far."""
        return sum(self._received[number] for number, sent in self._open.items() if sent.client == client)

    def cancel(self, kind: str) -> None:
        """Ignore replies to all messages of this kind that were sent so far."""
        for message_id in [message_id for message_id, sent in self._open.items() if sent.kind == kind]:
            self._close(message_id)

    def collect(self) -> Iterator[tuple[SentMessage, RecordDict | Failure]]:
        """Yield each message whose reply has arrived, with the content of the reply.

        Replies are read one at a time, because each may be as large as the model.
        """
        for message_id, sent in list(self._open.items()):
            if monotonic() > sent.expires:
                self._close(message_id)
                continue
            try:
                replies = self._pull(message_id, sent)
                content = _content(replies[0], sent.node) if replies else None
            except httpx.HTTPError:
                raise  # the network has failed, not the sender
            except Exception as error:  # decoding what a sender made up may raise anything
                reason = f"its reply cannot be read: {type(error).__name__}: {str(error)[:ERROR_LENGTH]}"
                content = Failure(printable(reason))
            if content is not None:
                self._close(message_id)
                yield sent, content

    def _close(self, message_id: str) -> None:
        del self._open[message_id]
        self._partial.pop(message_id, None)
        with self._counting:
            self._received.pop(message_id, None)

    def _pull(self, message_id: str, sent: SentMessage) -> list[Message]:
        """Return a list with the reply to a message; return an empty list if the reply has not arrived completely.

        Flower blocks until a reply that was announced has arrived completely. So a thread pulls the reply. The first
        call waits a few seconds for this thread; later calls only check whether the thread has ended. An error in the
        thread is raised here.
        """
        pull, seconds = self._partial.get(message_id), 0.0
        if pull is None:
            if not self._may_start_thread(sent):
                return []
            pull, seconds = self._partial.setdefault(message_id, Future()), PULL_SECONDS
            self._pulls.append((sent, pull))
            threading.Thread(target=self._run_pull, args=(message_id, sent, pull), name=THREAD, daemon=True).start()
        if pull not in wait([pull], timeout=seconds).done:
            return []
        del self._partial[message_id]
        return pull.result()

    def _may_start_thread(self, sent: SentMessage) -> bool:
        """Return whether a thread for the reply to `sent` may start.

        There may be one thread for each node, and `UNKNOWN_SENDERS` threads for nodes without a registered client. So a
        node that announces replies and never sends them neither uses up threads nor delays other nodes.
        """
        self._pulls = [(other, pull) for other, pull in self._pulls if not pull.done()]
        waiting = [other for other, _ in self._pulls]
        unknown = sum(not other.client for other in waiting)
        return all(other.node != sent.node for other in waiting) and (bool(sent.client) or unknown < UNKNOWN_SENDERS)

    def _count(self, message_id: str, size: int) -> None:
        with self._counting:
            if message_id in self._open:
                self._received[message_id] += size

    def _run_pull(self, message_id: str, sent: SentMessage, pull: Future[list[Message]]) -> None:
        try:
            with pull_deadline(sent.expires, partial(self._count, message_id)):
                pull.set_result(list(self._grid.pull_messages([message_id])))
        except BaseException as error:
            pull.set_exception(error)


def _content(reply: Message, node: int) -> RecordDict | Failure:
    """Return the records in a reply.

    Returns a Failure if the network or the client reports an error, or if the sender is not `node`.
    """
    if reply.has_error():
        if reply.error.code in _UNAVAILABLE:
            return NODE_GONE
        return Failure(printable(f"{reply.error.reason or 'no reason given'}"[:ERROR_LENGTH]))
    if reply.metadata.src_node_id != node:
        return Failure(f"its reply came from node {reply.metadata.src_node_id}")
    return reply.content
