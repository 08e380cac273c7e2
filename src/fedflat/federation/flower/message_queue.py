"""Sends messages to nodes and collects their replies; an unreadable or slow reply affects only its sender."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ...core.errors import printable
from ..membership import NodeKey
from ..messages import Failure
from .internals import LOST, NetworkError, UploadError, pull_deadline

NODE_GONE = Failure("its node has gone")  # if the network has lost the node, the message or the reply
ERROR_LENGTH = 200  # most characters of an error
THREAD = "fedflat reply"
PULL_SECONDS = 5.0  # of waiting for a reply; after that, a thread waits for it while the next reply is tried
UNKNOWN_SENDERS = 16  # threads that may wait for replies of nodes at which no client is registered


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
        except UploadError:  # the SuperLink keeps its list of uploads in memory only
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
            except NetworkError:
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
        if reply.error.code in LOST:
            return NODE_GONE
        return Failure(printable(f"{reply.error.reason or 'no reason given'}"[:ERROR_LENGTH]))
    if reply.metadata.src_node_id != node:
        return Failure(f"its reply came from node {reply.metadata.src_node_id}")
    return reply.content
