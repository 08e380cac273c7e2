"""A SuperLink and its nodes in virtual time, on which messages are late, lost, doubled and out of order.

What the SuperLink answers is what that of Flower 1.41 and 1.42 does (`in_memory_linkstate.py`): a message lives until
its time by the SuperLink's clock is over, a node is listed until it has missed two heartbeats, and a message has one
reply.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from support.virtual_time import SERVER, BrokenPromise, KilledError, Kills, VirtualTime

SUPERLINK = 1
MESSAGE_GONE, REPLY_GONE, NODE_GONE = 3, 4, 5  # Flower's error codes; the second is never needed here
HEARTBEAT = 30.0  # seconds between two of a node
PATIENCE = 2  # heartbeats after which a node is offline
HONEST = "honest"
LOST = ("client record", "the client's log has more")  # reasons of clients that nothing here may bring about
BUSY = 5.0  # seconds until a node that cannot reach the SuperLink tries again


@dataclass
class Machine:
    """A client's machine: its app, its folder, and whether a node runs on it."""

    name: str
    app: ClientApp
    config: Mapping[str, Any]
    node: int | None = None  # the number of its node, None while none runs
    process: int = 0  # which start of the node this is
    is_cut: bool = False  # whether it cannot reach the SuperLink
    impostor: bool = False


@dataclass
class Order:
    """A message to a node, as the SuperLink keeps it."""

    message: Message
    client: str  # to whose node it was sent
    started: int  # in which start of the server
    pushed: float
    reply: Message | None = None
    kind: str = HONEST  # what its reply is: honest, wrong or stale
    replied: bool = False
    was_late: bool = False  # whether its reply came in parts, slowly


@dataclass
class Rates:
    """How often what happens: shares of messages, and seconds."""

    latency: float = 0.2  # seconds on the way, the median
    late: float = 0.0  # share of messages that take far longer
    lateness: float = 0.0  # seconds, at most
    training: float = 1.0  # seconds, the median
    lost: float = 0.0
    doubled: float = 0.0
    blocked: float = 0.0  # share of replies that come in parts, slowly
    refused: float = 0.0  # share of uploads that the SuperLink does not take
    broken: float = 0.0  # share of calls of the server that find no SuperLink
    wrong: float = 0.0  # share of replies with numbers that must not count
    stale: float = 0.0  # share of replies that are those to another request
    killed: float = 0.0  # share of tasks in the middle of which the client's process ends
    orphans: float = 0.0  # share of ended nodes whose task goes on to its end
    doubled_replies: float = 0.0


CALM = Rates()


@dataclass
class Network:
    """What is between the server and its clients."""

    time: VirtualTime
    kills: Kills
    random: random.Random
    machines: dict[str, Machine]
    run_config: Mapping[str, Any]
    spoil: Callable[[random.Random, Message, RecordDict], RecordDict | None]  # a wrong reply in place of a good one
    rates: Rates = field(default_factory=Rates)
    orders: dict[str, Order] = field(default_factory=dict)  # those that the SuperLink keeps, by their ids
    online_until: dict[int, float] = field(default_factory=dict)  # by node, on the server's clock
    names: dict[int, str] = field(default_factory=dict)  # the client of each node that there ever was
    sent: list[Order] = field(default_factory=list)  # all orders ever
    read: list[tuple[Order, Message]] = field(default_factory=list)  # replies that the server has pulled
    told: list[tuple[str, str, int, tuple[int, ...]]] = field(default_factory=list)  # federation, client, round, whom
    earlier: dict[str, list[tuple[int, str, RecordDict]]] = field(default_factory=dict)  # replies of each client
    kill_server: bool = False
    next_node: int = 100

    # --- nodes ---------------------------------------------------------------------------------------------------

    def connect(self, machine: Machine, node: int | None = None) -> None:
        """A node starts on a machine, with a new number unless one is given."""
        self.next_node += 1
        machine.node, machine.process = node or self.next_node, machine.process + 1
        self.names[machine.node] = machine.name
        self.kills.dead.discard(machine.name)
        self.time.boot(machine.name, self.random.uniform(0, 1e6))
        self.time.note(f"{machine.name} is at node {machine.node}{' (an impostor)' if machine.impostor else ''}")
        self._heartbeat(machine, machine.process)

    def back(self, machine: Machine, node: int | None = None) -> None:
        """Start a node on a machine where none runs."""
        if machine.node is None:
            self.connect(machine, node)

    def stop(self, machine: Machine, tells: bool) -> None:
        """A node ends; the SuperLink knows at once if it `tells`, and otherwise misses its heartbeats."""
        if machine.node is None:
            return
        self.time.note(f"{machine.name}'s node {machine.node} ends{'' if tells else ' without a word'}")
        if tells:
            self.online_until[machine.node] = -1.0
        machine.node, machine.process = None, machine.process + 1

    def _heartbeat(self, machine: Machine, process: int) -> None:
        if machine.process != process or machine.node is None:
            return
        if not machine.is_cut:
            self.online_until[machine.node] = self._server_wall() + PATIENCE * HEARTBEAT
        self.time.after(HEARTBEAT, lambda: self._heartbeat(machine, process))

    def _server_wall(self) -> float:
        return self.time.wall_of(SERVER)

    def online(self) -> list[int]:
        """The nodes that the SuperLink takes for connected."""
        return sorted(node for node, until in self.online_until.items() if until >= self._server_wall())

    def forget(self) -> None:
        """The SuperLink starts anew, without the messages that it had."""
        self.time.note("the SuperLink forgets its messages")
        self.orders.clear()

    # --- messages ------------------------------------------------------------------------------------------------

    def travel(self) -> float:
        """Seconds that a message is on its way."""
        seconds = self.rates.latency * self.random.lognormvariate(0, 0.7)
        return seconds + (self.random.uniform(0, self.rates.lateness) if self._happens(self.rates.late) else 0.0)

    def pull_delay(self) -> float:
        """Seconds until all of a reply has come that the server pulls."""
        return self.random.uniform(0, 60) if self._happens(self.rates.blocked) else 0.0

    def _happens(self, share: float) -> bool:
        return self.random.random() < share

    def push(self, message: Message) -> str | None:
        """Take a message to a node."""
        self._reach_superlink("push")
        self.time.pass_time(self.random.uniform(0, 0.1))
        self._end_if_killed()
        node = message.metadata.dst_node_id
        if self._happens(self.rates.refused):
            self.time.note(f"an upload to node {node} breaks off")
            if self.random.random() < 0.5:
                raise ObjectPushError("an object", 1, "a session")
            return None
        expires = message.metadata.created_at + message.metadata.ttl
        if node not in self.online_until or expires <= self._server_wall():
            return None
        number = f"message-{len(self.sent):05d}"
        message.metadata.__dict__["_message_id"] = number
        order = Order(message, self.names[node], self.time.server_starts, self.time.now)
        self.orders[number] = order
        self.sent.append(order)
        self.time.note(f"{number} to {order.client} at {node}: {described(message.content)}")
        copies = 2 if self._happens(self.rates.doubled) else 1
        for _ in range(copies):
            if self._happens(self.rates.lost):
                self.time.note(f"{number} is lost on its way")
            else:
                self.time.after(self.travel(), lambda: self._deliver(order, node))
        return number

    def _deliver(self, order: Order, node: int) -> None:
        machine = self.machines[order.client]
        if machine.node != node:
            return  # nobody takes it
        if machine.is_cut:
            return self.time.after(BUSY, lambda: self._deliver(order, node))
        process = machine.process
        orphan = self._happens(self.rates.orphans)
        seconds = self.rates.training * min(self.random.lognormvariate(0, 1.0), 8.0)
        self.time.after(seconds, lambda: self._work(order, machine, process, orphan))

    def _work(self, order: Order, machine: Machine, process: int, orphan: bool) -> None:
        """A client's process has done its task; of a node that has ended it only goes on as an `orphan`."""
        there = machine.process == process
        if not there and not orphan:
            return
        self.kills.dead.discard(machine.name)
        if self._happens(self.rates.killed):
            self.kills.left[machine.name] = self.random.randrange(14)
        number = order.message.metadata.message_id
        with self.time.running(machine.name):
            try:
                reply = machine.app(order.message, self._context(order, machine))
            except KilledError:
                reply = None
        self.kills.left.pop(machine.name, None)
        self.kills.dead.discard(machine.name)
        if reply is None:
            if there:  # a supervisor starts the node again
                self.stop(machine, tells=False)
                self.time.after(self.random.choice((2.0, 40.0)), partial(self.back, machine))
            return
        self.time.note(f"{machine.name} has done {number}{'' if there else ', and its node is gone'}")
        self._remember(order, reply)
        if there:
            spoiled, kind = self._spoiled(order, reply)
            self.time.after(self.travel(), lambda: self._answer(order, spoiled, kind, machine, process))

    def _context(self, order: Order, machine: Machine) -> Context:
        node = order.message.metadata.dst_node_id
        return Context(7, node, dict(machine.config), RecordDict(), dict(self.run_config))

    def _remember(self, order: Order, reply: Message) -> None:
        content, asked = reply.content, order.message.content
        if "failure" in content:
            reason = str(content["failure"]["reason"])
            self.time.note(f"{order.client} says: {reason}")
            if any(part in reason for part in LOST):
                raise BrokenPromise(f"{order.client} has lost what it needs: {reason}")
            return
        if "unmask-order" in asked:
            plain = asked["unmask-order"]
            self.told.append((plain["federation"], order.client, plain["t"], tuple(plain["survivors"])))
        self.earlier.setdefault(order.client, []).append((*_about(asked), content))

    def _spoiled(self, order: Order, reply: Message) -> tuple[Message, str]:
        """The reply and its kind: at times it is another one that must not count."""
        asked, content, kind = order.message.content, None, HONEST
        if order.message.metadata.message_type != MessageType.TRAIN or "failure" in reply.content:
            return reply, kind
        if self._happens(self.rates.stale):
            others = [c for *about, c in self.earlier[order.client] if about[0] != _about(asked)[0]
                      and set(c) == set(reply.content)]  # fmt: skip
            content, kind = (self.random.choice(others) if others else None), "stale"
        elif self._happens(self.rates.wrong):
            content, kind = self.spoil(self.random, order.message, reply.content), "wrong"
        if content is None:
            return reply, HONEST
        self.time.note(f"{order.client} sends a {kind} reply to {order.message.metadata.message_id}")
        with self.time.running(order.client):
            return Message(content, reply_to=order.message), kind

    def _answer(self, order: Order, reply: Message, kind: str, machine: Machine, process: int) -> None:
        """A reply arrives at the SuperLink."""
        number, expires = order.message.metadata.message_id, reply.metadata.created_at + reply.metadata.ttl
        if machine.process != process:
            return
        if machine.is_cut:
            return self.time.after(BUSY, lambda: self._answer(order, reply, kind, machine, process))
        if self._happens(self.rates.lost):
            return self.time.note(f"the reply to {number} is lost")
        known = self.orders.get(number) is order and self._lives(order)
        if not known or order.reply is not None or order.replied or reply.metadata.ttl <= 0 or (
            expires <= self._server_wall()
        ):  # fmt: skip
            return self.time.note(f"the SuperLink takes no reply to {number}")
        order.reply, order.kind = reply, kind
        self.time.note(f"the reply to {number} is at the SuperLink")

    def _lives(self, order: Order) -> bool:
        return order.message.metadata.created_at + order.message.metadata.ttl > self._server_wall()

    def pull(self, number: str) -> list[Message]:
        """The reply to a message, or what the SuperLink says in its place; nothing if there is none yet."""
        self._reach_superlink("pull")
        order = self.orders.get(number)
        if order is None or not self._lives(order):
            self.orders.pop(number, None)
            return [Message(Error(MESSAGE_GONE, "Message Unavailable"), reply_to=self._asked(number))]
        if order.reply is not None:
            reply, order.reply, order.replied = order.reply, None, True
            order.was_late = self.time.is_late
            self.read.append((order, reply))
            return [reply, reply] if self._happens(self.rates.doubled_replies) else [reply]
        if self.online_until[order.message.metadata.dst_node_id] < self._server_wall():
            return [Message(Error(NODE_GONE, "Node Unavailable"), reply_to=order.message)]
        return []

    def _asked(self, number: str) -> Message:
        return self.sent[int(number.removeprefix("message-"))].message

    def _reach_superlink(self, what: str) -> None:
        self._end_if_killed()
        if self._happens(self.rates.broken):
            self.time.note(f"the server finds no SuperLink: {what}")
            raise httpx.ConnectError("no SuperLink")

    def _end_if_killed(self) -> None:
        """Raise KilledError if the server's process was killed meanwhile."""
        if self.kill_server:
            self.kill_server = False
            self.time.note("the server is killed")
            self.kills.dead.add(SERVER)
            raise KilledError

    def calm(self) -> None:
        """From here on nothing goes wrong."""
        self.rates = replace(CALM)
        self.kills.left.clear()


def _about(content: RecordDict) -> tuple[int, str]:
    """The round and the session of a request; -1 for a question."""
    for plain in content.config_records.values():
        return int(plain.get("t", -1)), str(plain.get("session", ""))  # type: ignore[arg-type]
    return -1, ""


def described(content: RecordDict) -> str:
    """What a message to a client is, in a few words."""
    for name, plain in content.config_records.items():
        return f"{name} of round {plain.get('t')}"
    return "who is there"


class TroubledGrid(Grid):
    """The server's end of a `Network`."""

    def __init__(self, network: Network) -> None:
        self._network = network
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SUPERLINK, 3

    def get_nodes(self) -> list[NodeInfo]:
        self._network._reach_superlink("list of nodes")
        return [NodeInfo(node_id=number) for number in self._network.online()]

    def get_node_ids(self) -> list[int]:
        return self._network.online()

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        return [self._network.push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for number in message_ids for reply in self._network.pull(number)]

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(7)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError
