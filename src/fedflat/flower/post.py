"""Sends messages to nodes and finds their replies; a reply that cannot be read harms nobody but its sender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from ..deploy.messages import Failure

SHOWN = 200  # characters of an error


@dataclass(frozen=True)
class Sent:
    """A message that a reply is expected to."""

    node: int
    kind: str  # Flower's type of message
    name: str  # of the client, or "" where it is not known
    group: str  # the round
    until: float  # when it is no longer waited for


class Post:
    """The messages under way in one federation."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._open: dict[str, Sent] = {}

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
        self._open = {number: sent for number, sent in self._open.items() if sent.kind != kind}

    def collect(self) -> Iterator[tuple[Sent, RecordDict | Failure]]:
        """The replies that are there, one after another, so that no two are held at once."""
        for number, sent in list(self._open.items()):
            if monotonic() > sent.until:
                del self._open[number]
                continue
            reply = self._reply(number, sent)
            if reply is not None:
                del self._open[number]
                yield sent, reply

    def _reply(self, number: str, sent: Sent) -> RecordDict | Failure | None:
        try:
            replies = list(self._grid.pull_messages([number]))
        except httpx.HTTPError:
            raise  # the network's fault, not the node's
        except Exception as error:
            return Failure(f"its reply cannot be read: {type(error).__name__}: {str(error)[:SHOWN]}")
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():
            return Failure(f"{reply.error.reason or 'no reason given'}"[:SHOWN])
        if reply.metadata.src_node_id != sent.node:
            return Failure(f"its reply came from node {reply.metadata.src_node_id}")
        return reply.content
