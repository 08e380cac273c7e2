"""Flower's network without a network: client apps in this process, with messages written and read as they would be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SUPERLINK = 1  # the number of the node that the server's messages come from
UNAVAILABLE = 5  # Flower's code of a node that has gone
Contents = dict[str, bytes]  # a message's objects, by their digests


@dataclass
class Node:
    """A SuperNode: an app, its configuration, and what happens to its replies on the way."""

    app: ClientApp
    config: Mapping[str, Any]
    registered: str | None = None  # the name that its key has at the SuperLink
    key: bytes = b""  # its public key
    tamper: Callable[[str, Contents], Contents | None] = field(default=lambda number, contents: contents)


class LocalGrid(Grid):
    """Nodes by number; `nodes` may be changed between messages, as machines come and go."""

    def __init__(self, nodes: Mapping[int, Node], run_config: Mapping[str, Any]) -> None:
        self.nodes, self._config = dict(nodes), dict(run_config)
        self.replies: dict[str, tuple[str, Contents]] = {}
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SUPERLINK, 3
        self.pushed: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=number, name=node.registered, public_key=node.key) for number, node in self.nodes.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str | None:
        if message.metadata.dst_node_id not in self.nodes:
            return None
        number = message.object_id
        message.metadata.__dict__["_message_id"] = number
        self.pushed.append(message)
        node = self.nodes[message.metadata.dst_node_id]
        received = _read(number, _written(message))
        received.metadata.__dict__["_message_id"] = number
        context = Context(7, message.metadata.dst_node_id, dict(node.config), RecordDict(), dict(self._config))
        reply = node.app(received, context)
        contents = node.tamper(number, _written(reply))
        if contents is not None:
            self.replies[number] = (reply.object_id, contents)
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self.replies.pop(number) for number in message_ids if number in self.replies]
        return [_read(number, contents) for number, contents in found]

    def lose(self, node: int, sent: Message) -> None:
        """Remove the node; the network replies for it to the message."""
        del self.nodes[node]
        reply = Message(Error(UNAVAILABLE, "Node Unavailable"), reply_to=sent)
        self.replies[sent.metadata.message_id] = (reply.object_id, _written(reply))

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(7)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError


class ServerEnded(BaseException):
    """The server's process ends."""


def ending_in(t: int) -> type[LocalGrid]:
    """Return a grid whose server ends in round `t`, when clients have trained in it."""

    class Ending(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == str(t):
                raise ServerEnded
            return found

    return Ending


def _written(message: Message) -> Contents:
    return {number: thing.deflate() for number, thing in get_all_nested_objects(message).items()}


def _read(number: str, contents: Contents) -> Message:
    message = inflate_object_from_contents(number, dict(contents))
    assert isinstance(message, Message)
    return message
