"""What server and clients say to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .codec import Packed


@dataclass(frozen=True)
class TrainRequest:
    """The server asks a client to train in round `t`."""

    t: int
    since: int  # the client's last round that counted, -1 for none: its record is as of then
    safe: tuple[int, ...]  # the same in each of the states that the server has saved, and may go back to
    number: int  # of the client: its place among all names, in order
    share: float  # sampled clients / all clients
    sampled: int  # clients that take part in the round
    federation: str  # which the client's records belong to
    digest: str  # of the study
    down: Mapping[str, Packed] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class ClientInfo:
    """A client says who it is, and what it has."""

    name: str
    samples: int
    shape: tuple[int, ...]  # of a sample
    digest: str  # of the study
    version: str  # of fedflat


@dataclass(frozen=True)
class TrainReply:
    """A client has trained."""

    t: int
    samples: int  # that it holds
    steps: int  # local steps that it has taken
    gradients: int  # minibatch gradients
    drift: float  # ||w_i - w^t||
    up: Mapping[str, Packed] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Failure:
    """A client has not trained, and says why."""

    reason: str


class Transport(Protocol):
    """Carries orders to clients, by name, and their answers back."""

    def exchange(
        self, orders: Mapping[str, TrainRequest], deadline: float
    ) -> Iterator[tuple[str, TrainReply | Failure]]:
        """Send the orders, and give answers as they come, with the name that the carrier knows them by, for at most
        `deadline` seconds. Who does not answer is left out."""
