"""The clients of a federation, which may join and leave between rounds, and the network node of each client."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import InputError, printable
from ..rounds import checkpoint
from ..rounds.participation import Participation
from .client_names import checked_name
from .messages import ClientInfo

FEDERATION_NAME = re.compile(r"[0-9a-f]{16}")
NAMED = 3  # most clients that an error message names


class FederationError(RuntimeError):
    """A federation cannot continue; the message is one line."""


class RoundFailedError(FederationError):
    """A round has no result, for example because too few clients replied; the model is unchanged."""


def first_reasons(missing: Mapping[str, str]) -> str:
    """Return text for an error message: up to `NAMED` clients without an accepted reply, each with the reason."""
    return "; ".join(f"{name}: {reason}" for name, reason in list(missing.items())[:NAMED])


@dataclass(frozen=True)
class Membership:
    """The clients of a federation and its random name, which differs between two federations of the same study."""

    # Each client's number of samples, by name. A client's number is its place here: at the beginning the names are
    # sorted, and who joins later comes last, so that no number ever changes.
    members: Mapping[str, int]
    name: str
    left: frozenset[str] = frozenset()  # members that have left for good; they keep their numbers

    @classmethod
    def new(cls, members: Mapping[str, int]) -> Membership:
        """Return the membership of a federation that begins now."""
        return cls(dict(sorted(members.items())), secrets.token_hex(8))

    @property
    def present(self) -> dict[str, int]:
        """The members that have not left, N of them."""
        return {name: samples for name, samples in self.members.items() if name not in self.left}

    def joined_by(self, members: Mapping[str, int]) -> Membership:
        """Return the membership with further clients."""
        return replace(self, members={**self.members, **dict(sorted(members.items()))})

    def without(self, names: Collection[str]) -> Membership:
        """Return the membership after these members have left for good."""
        return replace(self, left=self.left.union(names))

    @classmethod
    def load(cls, path: Path) -> Membership:
        """Read the membership from a checkpoint. Raises InputError, naming the file, if it is no federation's."""
        settings = checkpoint.load(path)[1].get("settings", {})
        if "members" not in settings or "federation" not in settings:
            raise InputError(f"checkpoint {path} is not that of a federation")
        return cls(settings["members"], settings["federation"], frozenset(settings.get("left", ())))


def fixed_members(participation: Participation, is_private: bool) -> str:
    """Return the reason why the members of a federation cannot change; empty if they can."""
    if is_private:
        return "the members of a private federation are fixed: its noise is that of their number"
    return "the members are fixed: participation names clients by number" if participation.names_clients else ""


def checked_federation(name: object) -> str:
    """Return `name` if it is allowed as the name of a federation. Raises InputError if not."""
    if not isinstance(name, str) or not FEDERATION_NAME.fullmatch(name):
        raise InputError(f"federation {str(name)[:64]!r} must be sixteen hexadecimal digits")
    return name


@dataclass(frozen=True)
class NodeKey:
    """The identity that a node has proved by its key."""

    name: str | None = None  # with which the key was registered; None if it has no name
    public: bytes = b""  # the public key; empty if the node has none


class ClientRegistry:
    """Registers clients by name if they fit the federation, and remembers the node of each one.

    The federation begins with the first `first` clients that register. Then its members can register, and clients that
    may join, which are members once `admit` has been called with them.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        digest: str,
        version: str,
        members: Membership | None = None,
        first: int | None = None,
        listed: Callable[[], Mapping[str, int]] | None = None,
        closed: str = "",
        max_samples: int = 2**53,
        keys_of: Callable[[str], Collection[bytes]] | None = None,
    ) -> None:
        """Begin with no registered client; `shape`, `digest` and `version` are values that every client must have.

        members: of a federation that has begun. first: the number of clients with which it begins. listed: returns the
        operator's list of clients with their numbers of samples, which may have grown since the last call; by default
        every client may register. closed: the reason why nobody may join once the federation has begun; empty if
        clients may. max_samples: the most samples of a client that is not listed. keys_of: returns the public keys that
        the operator lists for a client; by default any key is accepted.
        """
        self._keys_of, self._listed, self._closed = keys_of, listed, closed
        self._common = {"shape": shape, "digest": digest, "version": version}
        self._left = frozenset[str]() if members is None else members.left
        self._members: Mapping[str, int] | None = None if members is None else members.present
        self._first, self._max_samples = first, max_samples
        self.nodes: dict[str, int] = {}  # of the registered clients that are connected, by name
        self._samples: dict[str, int] = {}
        self.refused: dict[int, str] = {}  # nodes that could not be registered, with the reason

    @property
    def members(self) -> dict[str, int]:
        """The number of samples of each client that has registered, by name, even if its node has disconnected."""
        return dict(self._samples)

    def register(self, node: int, info: ClientInfo, key: NodeKey | None = None) -> bool:
        """Register the client at a node, or record the reason in `refused`. Returns whether it was registered."""
        try:
            self._check(node, info, key or NodeKey())
        except InputError as error:
            self.refuse(node, str(error))
            return False
        self.refused.pop(node, None)
        self.nodes = {client: other for client, other in self.nodes.items() if other != node}
        self.nodes[info.name], self._samples[info.name] = node, info.samples
        if self._members is None and len(self._samples) == self._first:
            self._members = self.members
        return True

    @property
    def joining(self) -> dict[str, int]:
        """The number of samples of each connected client that may join the federation, by name."""
        return {name: self._samples[name] for name in self.nodes if name not in (self._members or self._samples)}

    def admit(self, federation: Membership) -> None:
        """Take over the members of the federation, some of which have joined or left."""
        self._members, self._left = federation.present, federation.left
        self.nodes = {name: node for name, node in self.nodes.items() if name not in self._left}

    def refuse(self, node: int, reason: str) -> None:
        """Record why a node is not registered. The reason may quote what the node sent, so it is put on one line."""
        self.refused[node] = printable(reason)

    def disconnect_others(self, connected: set[int]) -> list[str]:
        """Forget the nodes that are not in `connected`; return the clients of the forgotten nodes, sorted."""
        lost = sorted(client for client, node in self.nodes.items() if node not in connected)
        self.nodes = {client: node for client, node in self.nodes.items() if node in connected}
        self.refused = {node: reason for node, reason in self.refused.items() if node in connected}
        return lost

    def _check(self, node: int, info: ClientInfo, key: NodeKey) -> None:
        name = checked_name(info.name)
        if key.name not in (None, name):
            raise InputError(f"{name}: its key was registered with the name {key.name}")
        for field, value in self._common.items():
            if getattr(info, field) != value:
                raise InputError(f"{name}: {field} is {str(getattr(info, field))[:64]}, the server's {value}")
        if type(info.samples) is not int or not 1 <= info.samples < 2**53:
            raise InputError(f"{name}: has {str(info.samples)[:20]} samples, at least one is needed")
        if self.nodes.get(name, node) != node:
            raise InputError(f"{name}: another node has this name")
        self._check_samples(name, info.samples)
        if self._keys_of is not None and key.public not in self._keys_of(name):
            raise InputError(f"{name}: its key is not one that the registry lists for it")

    def _check_samples(self, name: str, samples: int) -> None:
        """Raise InputError unless the client is a member or may join, and has as many samples as it must."""
        if name in self._left:
            raise InputError(f"{name}: has left this federation for good")
        if self._members is not None and name in self._members:
            if self._members[name] != samples:
                raise InputError(f"{name}: has {samples} samples, and had {self._members[name]} when it joined")
            return
        if self._members is not None and self._closed:
            raise InputError(f"{name}: {self._closed}")
        listed = None if self._listed is None else self._listed()
        if listed is None and samples > self._max_samples:
            raise InputError(f"{name}: says {samples} samples, max-samples is {self._max_samples}")
        if listed is not None and name not in listed:
            raise InputError(f"{name}: is not one of the run-config members")
        if listed is not None and listed[name] != samples:
            raise InputError(f"{name}: has {samples} samples, and the run-config members say {listed[name]}")
