"""The messages between server and clients, and the interface of what exchanges them.

The fields' names are sent over the network: nodes of another version read them too, so they must not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .codec import PackedTensor


@dataclass(frozen=True)
class TrainRequest:
    """The server asks a client to train in round `t`."""

    t: int
    since: int  # last round in which the server accepted this client's update, -1 if none; the client starts from there
    safe: tuple[int, ...]  # the same for each checkpoint that the server may go back to; the client keeps these states
    number: int  # of the client: its position among all names, sorted
    share: float  # sampled clients / all clients
    sampled: int  # clients that take part in the round
    federation: str  # name of the federation, under which the client stores its state
    digest: str  # of the study
    down: Mapping[str, PackedTensor] = field(repr=False, default_factory=dict)  # the server's broadcast


@dataclass(frozen=True)
class ClientInfo:
    """A client's name and what it must have in common with the server."""

    name: str
    samples: int
    shape: tuple[int, ...]  # of a sample
    digest: str  # of the study
    version: str  # of fedflat


@dataclass(frozen=True)
class TrainReply:
    """The result of a client's training."""

    t: int
    samples: int  # that the client holds
    steps: int  # local steps that it took
    gradients: int  # minibatch gradients that it computed
    drift: float  # ||w_i - w^t||
    up: Mapping[str, PackedTensor] = field(repr=False, default_factory=dict)  # the client's update


@dataclass(frozen=True)
class Failure:
    """A client, or the network on its behalf, gives the reason why there is no result."""

    reason: str


Reply = TrainReply | Failure


class Request(Protocol):
    """What a client is asked in a round: to train, or a step of a secure sum."""

    @property
    def t(self) -> int:
        """The round."""


class Transport(Protocol):
    """Sends requests to clients and returns their replies."""

    def exchange(self, requests: Mapping[str, Any], deadline: float) -> Iterator[tuple[str, Any]]:
        """Send each client, by name, its `Request`, and yield names and replies as they arrive, for `deadline` seconds.

        A reply is of the type that belongs to the request's, `TrainReply` to `TrainRequest`, or a `Failure`.

        A client that does not reply is not yielded. The name is the one that the transport identified the sender by,
        whatever the reply claims.
        """
