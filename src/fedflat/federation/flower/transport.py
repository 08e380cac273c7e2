"""Exchanges requests and replies with clients over Flower's network, where clients are found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import Any

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid

from ..membership import ClientRegistry, FederationError, NodeKey
from ..messages import Failure, RefusedError, TrainRequest
from .message_queue import NODE_GONE, MessageQueue, SentMessage
from .records import SumRequest, read_client_info, read_reply, to_records, vector_bytes

POLL_SECONDS = 0.25  # between two checks for replies, at least
PAUSES = 4.0  # seconds between two checks for each second that the last one took
SCAN_SECONDS = 2.0  # between two requests for the list of connected nodes
RETRY_SECONDS = 60.0  # until a node that was refused, or has not replied, is asked for its ClientInfo again
QUERY_SECONDS = 300.0  # for a node to reply with its ClientInfo; the first time it loads its data
ABSENT_SECONDS = 60.0  # that a round waits for a client without a node; a supervisor restarts nodes sooner
STALL_SECONDS = 60.0  # until the log names the missing clients for the first time, see `StallClock`
MAX_SENDS = 3  # of one request, so that a node cannot make the server repeat it without end


class GatheringError(FederationError):
    """Too few clients registered for a federation to begin."""


@dataclass
class PendingRequest:
    """A request of the current round whose reply has not arrived."""

    message: TrainRequest | SumRequest
    node: int | None = None  # to which it was sent last
    sends: int = 0  # how many times it was sent
    absent_since: float | None = None  # when the client was first seen to have no node
    sent_at: str = ""  # time of day, UTC, when it was sent last


class StallClock:
    """Decides when to log the missing clients: 1, 2, 4, 8 and so on minutes after the beginning."""

    def __init__(self) -> None:
        self._begin, self._due = monotonic(), STALL_SECONDS

    def is_due(self) -> bool:
        """Return whether to log now. If so, the next log entry is due at twice the time since the beginning."""
        due = monotonic() - self._begin >= self._due
        self._due *= 2 if due else 1
        return due


class FlowerTransport:
    """A `Transport` over Flower's grid. It also registers clients, and logs registered, lost and refused clients."""

    def __init__(self, grid: Grid, registry: ClientRegistry, log_event: Callable[..., None]) -> None:
        self._queue, self._registry, self._log_event = MessageQueue(grid), registry, log_event
        self._nodes: dict[int, NodeKey] = {}  # connected nodes with their keys
        self._asked: dict[int, float] = {}  # when each node was asked for its ClientInfo
        self._last_scan = -SCAN_SECONDS
        self._sent_bytes, self._received_bytes = 0, 0  # of vectors, since the last call of `traffic`

    def traffic(self) -> dict[str, int]:
        """Return how many bytes of vectors were sent and received since the last call, by key of the round's event."""
        found = {"bytes_sent": self._sent_bytes, "bytes_received": self._received_bytes}
        self._sent_bytes, self._received_bytes = 0, 0
        return found

    def gather(self, number: int, seconds: float) -> None:
        """Wait until `number` clients have registered. Raises GatheringError if this takes longer than `seconds`."""
        end, clock = monotonic() + seconds, StallClock()
        while len(self._registry.members) < number:
            if clock.is_due():
                self._log_event("waiting for clients", clients=number, came=sorted(self._registry.members))
            if monotonic() > end:
                count, names = len(self._registry.members), ", ".join(sorted(self._registry.members)) or "none"
                found = f"{count} of {number} clients came within {seconds:g} seconds ({names})"
                reasons = [f"node {node} is none: {why}" for node, why in sorted(self._registry.refused.items())]
                raise GatheringError("; ".join([found, *reasons]))
            self._scan_nodes()
            for sent, content in self._queue.collect():
                self._register(sent.node, content)
            sleep(POLL_SECONDS)

    def exchange(self, requests: Mapping[str, Any], deadline: float) -> Iterator[tuple[str, Any]]:
        """Send each client its request; yield client names and replies as they arrive, for at most `deadline` seconds.

        A client that moves to another node gets its request again. A client that has no node for `ABSENT_SECONDS` is
        yielded with a Failure.
        """
        end = monotonic() + deadline
        self._queue.cancel(MessageType.TRAIN)
        self._last_scan = -SCAN_SECONDS  # nodes may have disconnected since the last round
        pending, clock = {client: PendingRequest(request) for client, request in requests.items()}, StallClock()
        while pending and monotonic() < end:
            if clock.is_due():
                self._log_waiting(pending, len(requests))
            self._scan_nodes()
            self._send(pending, end)
            began, found = monotonic(), False
            for sent, content in self._queue.collect():
                found = True
                if sent.kind == MessageType.QUERY:
                    self._register(sent.node, content)
                elif (reply := self._reply(sent, content, pending.get(sent.client))) is not None:
                    del pending[sent.client]
                    yield sent.client, reply
            for client in self._absent(pending):
                del pending[client]
                yield client, Failure(f"it has been gone for {ABSENT_SECONDS:g} seconds")
            now = monotonic()
            sleep(POLL_SECONDS if found else pause_after(now - began, end - now))

    def _send(self, pending: Mapping[str, PendingRequest], end: float) -> None:
        """Send each request to the client's node, unless it was sent there already."""
        for client, request in sorted(pending.items()):
            node = self._registry.nodes.get(client)
            if node is not None and node != request.node:
                sent = SentMessage(node, MessageType.TRAIN, client, group=str(request.message.t), expires=end)
                content = to_records(request.message)
                if self._queue.send(sent, content):
                    self._sent_bytes += vector_bytes(content)
                    request.node, request.sends = node, request.sends + 1
                    request.sent_at = f"{datetime.now(UTC):%H:%M:%S}"
                else:
                    self._last_scan = -SCAN_SECONDS

    def _log_waiting(self, pending: Mapping[str, PendingRequest], asked: int) -> None:
        """Log the clients that have not replied, with the time of their requests and the bytes received from each."""
        waiting = {
            client: f"since {request.sent_at}, {self._queue.received(client):,} bytes have come"
            if client in self._registry.nodes and request.sent_at
            else "no node of it is connected"
            for client, request in sorted(pending.items())
        }
        t = next(iter(pending.values())).message.t
        self._log_event("waiting for answers", t=t, asked=asked, answered=asked - len(pending), waiting=waiting)

    def _reply(self, sent: SentMessage, content: RecordDict | Failure, request: PendingRequest | None) -> Any:
        """Return the reply of a client, or None for a reply to ignore.

        A reply is ignored if the request has been sent to another node since. A report that the network has lost the
        node, the message or the reply is ignored if the request will be sent again.
        """
        if request is None or request.node != sent.node:
            return None
        if content is NODE_GONE and request.sends < MAX_SENDS:
            request.node = None
            self._last_scan = -SCAN_SECONDS
            return None
        if not isinstance(content, Failure):
            self._received_bytes += vector_bytes(content)
        try:
            return content if isinstance(content, Failure) else read_reply(content, request.message)
        except RefusedError as error:
            return Failure(str(error))

    def _absent(self, pending: Mapping[str, PendingRequest]) -> list[str]:
        """List the clients that have had no node for more than `ABSENT_SECONDS`."""
        now, registry, absent = monotonic(), self._registry, list[str]()
        # A node that has not replied with its ClientInfo may be busy with a request of an earlier server process.
        nodes = (node for node in self._nodes if node not in registry.nodes.values() and node not in registry.refused)
        busy = {self._nodes[node].name for node in nodes}
        for client, request in pending.items():
            if client in registry.nodes or client in busy or None in busy:
                request.absent_since = None
            elif request.absent_since is None:
                request.absent_since = now
            elif now - request.absent_since > ABSENT_SECONDS:
                absent.append(client)
        return absent

    def _scan_nodes(self) -> None:
        """Every few seconds, list the connected nodes, and ask the new ones for their ClientInfo."""
        now = monotonic()
        if now - self._last_scan < SCAN_SECONDS:
            return
        self._last_scan, self._nodes = now, self._queue.nodes()
        lost = self._registry.disconnect_others(set(self._nodes))
        for client in lost:
            self._log_event("client lost", client=client)
        # A lost client's new node may have been refused while the old node was connected, so all nodes are asked again.
        self._asked = {} if lost else {node: when for node, when in self._asked.items() if node in self._nodes}
        for node in sorted(self._nodes):
            if (
                node not in self._registry.nodes.values()
                and now - self._asked.get(node, -RETRY_SECONDS) >= RETRY_SECONDS
            ):
                sent = SentMessage(node, MessageType.QUERY, client="", group="", expires=now + QUERY_SECONDS)
                if self._queue.send(sent, RecordDict()):
                    self._asked[node] = now

    def _register(self, node: int, content: RecordDict | Failure) -> None:
        """Register the client that a node's reply describes, or refuse the node with a reason."""
        if node not in self._nodes:
            return  # the name of the node's key is not known before the next scan, which asks the node again
        try:
            if isinstance(content, Failure):
                raise RefusedError(content.reason)
            info = read_client_info(content)
        except RefusedError as error:
            self._registry.refuse(node, str(error))
        else:
            if self._registry.register(node, info, self._nodes[node]):
                return self._log_event("client", client=info.name, samples=info.samples, node=str(node))
        self._log_event("node refused", node=str(node), reason=self._registry.refused[node])


def pause_after(seconds: float, left: float) -> float:
    """Return how long to wait after a check that took `seconds` and found no reply, `left` seconds before the deadline.

    Each check asks the network about every client, which costs it milliseconds for each. Another check comes just
    before the deadline.
    """
    return max(POLL_SECONDS, min(PAUSES * seconds, SCAN_SECONDS, left - POLL_SECONDS))
