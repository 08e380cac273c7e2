"""Finds clients by name on Flower's network, and carries orders and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from time import monotonic, sleep

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid

from ..client_registry import ClientRegistry
from ..codec import RefusedError
from ..membership import FederationError
from ..messages import Failure, TrainReply, TrainRequest
from .message_queue import GONE, MessageQueue, Sent
from .records import read_client_info, read_train_reply, to_records

POLL = 0.25  # seconds between looks for replies
LOOK = 2.0  # seconds between looks for nodes
AGAIN = 60.0  # seconds until a node that was refused, or said nothing, is asked again who it is
TIMES = 3  # that an order is sent; a node cannot make us send it for ever
ABSENT = 60.0  # seconds that a round waits for a client that is at no node; a supervisor has it back by then
ASKED_FOR = 300.0  # seconds that a node has to say who it is; the first time it loads its data


class GatheringError(FederationError):
    """Too few clients came for a federation to begin."""


class FlowerTransport:
    """A `Transport` over Flower's grid; `tell` hears of clients that come, go or are refused."""

    def __init__(self, grid: Grid, census: ClientRegistry, tell: Callable[..., None]) -> None:
        self._post, self._census, self._tell = MessageQueue(grid), census, tell
        self._present: dict[int, str | None] = {}  # nodes, and the names that their keys were registered with
        self._asked: dict[int, float] = {}  # nodes that were asked who they are, and when
        self._looked = -LOOK
        self._times: Counter[str] = Counter()  # that a client's order was sent in this round

    def gather(self, number: int, seconds: float) -> None:
        """Wait until so many clients have come. Raises GatheringError if they have not within `seconds`."""
        end = monotonic() + seconds
        while len(self._census.members) < number:
            if monotonic() > end:
                raise GatheringError(self._who_came(number, seconds))
            self._look()
            for _ in self._replies():
                pass
            sleep(POLL)

    def exchange(
        self, orders: Mapping[str, TrainRequest], deadline: float
    ) -> Iterator[tuple[str, TrainReply | Failure]]:
        """As `Transport` says. A client that comes back in time gets its request again; one gone for long is given
        up."""
        end = monotonic() + deadline
        self._post.forget(MessageType.TRAIN)
        self._looked = -LOOK  # what was there after the last round may have gone
        self._times.clear()
        sent: dict[str, int] = {}
        gone: dict[str, float] = {}
        waiting = dict(orders)
        while waiting and monotonic() < end:
            self._look()
            self._send(waiting, sent, end)
            for name, answer in chain(self._answers(sent), self._given_up(waiting, gone)):
                if waiting.pop(name, None):
                    yield name, answer
            sleep(POLL)

    def _send(self, waiting: Mapping[str, TrainRequest], sent: dict[str, int], end: float) -> None:
        """The orders of clients that are there and have not got theirs."""
        for name, order in sorted(waiting.items()):
            node = self._census.node(name)
            if node is not None and sent.get(name) != node:
                sent[name] = node
                self._times[name] += 1
                self._post.send(Sent(node, MessageType.TRAIN, name, str(order.t), end), to_records(order))

    def _answers(self, sent: dict[str, int]) -> Iterator[tuple[str, TrainReply | Failure]]:
        """The answers of clients, from the nodes that their orders were sent to; a node that has gone gives none."""
        for parcel, content in self._replies():
            name = parcel.name
            if sent.get(name) != parcel.node:
                continue
            if content is GONE and self._times[name] < TIMES:
                del sent[name]
                self._looked = -LOOK
            else:
                yield name, _answer(content)

    def _given_up(self, waiting: Mapping[str, TrainRequest], gone: dict[str, float]) -> Iterator[tuple[str, Failure]]:
        """The clients that have been at no node for too long; `gone` says since when."""
        now, unknown = monotonic(), self._unknown()
        for name in list(waiting):
            if self._census.node(name) is not None or name in unknown or None in unknown:
                gone.pop(name, None)
            elif now - gone.setdefault(name, now) > ABSENT:
                yield name, Failure(f"it has been gone for {ABSENT:g} seconds")

    def _unknown(self) -> set[str | None]:
        """The registered names of nodes that are there and have not said who they are: they may be busy."""
        census = self._census
        return {name for node, name in self._present.items() if not (census.knows(node) or node in census.refused)}

    def _look(self) -> None:
        """Now and then: which nodes are there, and who are those that nobody knows?"""
        now = monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        present = self._present = self._post.present()
        lost = self._census.lose(set(present))
        for name in lost:
            self._tell("client lost", client=name)
        # One that came back at another node was refused as long as the old one was there.
        self._asked = {} if lost else {node: when for node, when in self._asked.items() if node in present}
        for node in sorted(present):
            if not self._census.knows(node) and now - self._asked.get(node, -AGAIN) >= AGAIN:
                self._asked[node] = now
                self._post.send(Sent(node, MessageType.QUERY, "", "", now + ASKED_FOR), RecordDict())

    def _replies(self) -> Iterator[tuple[Sent, RecordDict | Failure]]:
        """The replies to orders; introductions among them are taken up."""
        for parcel, content in self._post.collect():
            if parcel.kind == MessageType.QUERY:
                if parcel.node in self._present:  # else nothing is known of its key; it is asked again
                    self._meet(parcel.node, content)
            else:
                yield parcel, content

    def _meet(self, node: int, content: RecordDict | Failure) -> None:
        """Take up the client at a node, or say why not."""
        try:
            if isinstance(content, Failure):
                raise RefusedError(content.reason)
            said = read_client_info(content)
        except RefusedError as error:
            self._census.refuse(node, str(error))
        else:
            if self._census.hear(node, said, self._present.get(node)):
                return self._tell("client", client=said.name, samples=said.samples, node=str(node))
        self._tell("node refused", node=str(node), reason=self._census.refused[node])

    def _who_came(self, number: int, seconds: float) -> str:
        names, refused = sorted(self._census.members), self._census.refused
        why = "".join(f"; node {node} is none: {reason}" for node, reason in sorted(refused.items()))
        return f"{len(names)} of {number} clients came within {seconds:g} seconds ({', '.join(names) or 'none'}){why}"


def _answer(content: RecordDict | Failure) -> TrainReply | Failure:
    try:
        return content if isinstance(content, Failure) else read_train_reply(content)
    except RefusedError as error:
        return Failure(str(error))
