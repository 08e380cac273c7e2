"""Sends messages to nodes and finds their replies; a reply that cannot be read harms nobody but its sender."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ...core.errors import printable
from ..messages import Failure
from .bounds import pulling_until

GONE = Failure("its node has gone")  # or its reply has: what the network answers, and the order can be sent again
THREAD = "fedflat reply"
_UNAVAILABLE = (3, 4, 5)  # Flower's codes for a message, a reply and a node that cannot be had
SHOWN = 200  # characters of an error
PATIENCE = 5.0  # seconds for a reply until the next is looked at; it may be that its sender never sends the rest
STRANGERS = 16  # replies of nodes that nobody knows yet, of which the rest is waited for at once


@dataclass(frozen=True)
class Sent:
    """A message that a reply is expected to."""

    node: int
    kind: str  # Flower's type of message
    name: str  # of the client, or "" where it is not known
    group: str  # the round
    until: float  # when it is no longer waited for


class MessageQueue:
    """The messages under way in one federation."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open: dict[str, Sent] = {}
        self._slow: dict[str, Future[list[Message]]] = {}  # replies whose parts have not all come
        self._pulling: dict[str, tuple[Sent, Future[list[Message]]]] = {}  # those that a thread is at, wanted or not

    def present(self) -> dict[int, str | None]:
        """The nodes that the network says are there, with the name that each one's key was registered with, if any."""
        nodes = self._grid.get_nodes()
        return {node.node_id: node.name if node.HasField("name") else None for node in nodes}

    def send(self, sent: Sent, content: RecordDict) -> None:
        """Send a message; the network throws it and its reply away when `sent.until` has passed."""
        seconds = max(sent.until - monotonic(), 1.0)
        message = Message(content, sent.node, sent.kind, ttl=seconds, group_id=sent.group)
        for number in self._grid.push_messages([message]):
            if number:  # none if the node has gone meanwhile
                self._open[number] = sent

    def forget(self, kind: str) -> None:
        """Wait no longer for replies to messages of a kind."""
        for number in [number for number, sent in self._open.items() if sent.kind == kind]:
            self._close(number)

    def collect(self) -> Iterator[tuple[Sent, RecordDict | Failure]]:
        """The replies that are there, one after another, so that no two are held at once but those that come slowly."""
        for number, sent in list(self._open.items()):
            if monotonic() > sent.until:
                self._close(number)
                continue
            reply = self._reply(number, sent)
            if reply is not None:
                self._close(number)
                yield sent, reply

    def _close(self, number: str) -> None:
        del self._open[number]
        self._slow.pop(number, None)

    def _reply(self, number: str, sent: Sent) -> RecordDict | Failure | None:
        """The reply to a message, or None if it has not come, or not all of it."""
        try:
            replies = self._pulled(number, sent)
        except httpx.HTTPError:
            raise  # the network's fault, not the sender's
        except Exception as error:  # decoding may raise anything
            return Failure(printable(f"its reply cannot be read: {type(error).__name__}: {str(error)[:SHOWN]}"))
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error() and reply.error.code in _UNAVAILABLE:
            return GONE
        if reply.has_error():
            return Failure(printable(f"{reply.error.reason or 'no reason given'}"[:SHOWN]))
        if reply.metadata.src_node_id != sent.node:
            return Failure(f"its reply came from node {reply.metadata.src_node_id}")
        return reply.content

    def _pulled(self, number: str, sent: Sent) -> list[Message]:
        """Replies to a message that have come whole, none or one. Raises what reading it raises."""
        pull, patience = self._slow.get(number), 0.0
        if pull is None:
            if not self._may_pull(sent):
                return []
            pull, patience = self._slow.setdefault(number, Future()), PATIENCE
            self._pulling[number] = sent, pull
            # Flower waits for the rest of a reply that is announced; others must not wait with it.
            threading.Thread(target=self._pull, args=(number, sent, pull), name=THREAD, daemon=True).start()
        if pull not in wait([pull], timeout=patience).done:
            return []
        del self._slow[number]
        return pull.result()

    def _may_pull(self, sent: Sent) -> bool:
        """Whether another thread may wait for a reply: one at most for each node, and some for those nobody knows. So
        nodes that announce replies and do not send them take a bounded number of threads, and time of nobody else."""
        self._pulling = {number: (of, pull) for number, (of, pull) in self._pulling.items() if not pull.done()}
        waited = [of for of, _ in self._pulling.values()]
        strangers = sum(not of.name for of in waited)
        return sent.node not in {of.node for of in waited} and (bool(sent.name) or strangers < STRANGERS)

    def _pull(self, number: str, sent: Sent, pull: Future[list[Message]]) -> None:
        try:
            with pulling_until(sent.until):
                pull.set_result(list(self._grid.pull_messages([number])))
        except BaseException as error:
            pull.set_exception(error)
