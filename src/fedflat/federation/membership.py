"""The clients of a federation, which are fixed when it begins, and the network node of each client."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError, printable
from ..rounds import checkpoint
from .messages import ClientInfo

CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also safe as the name of a folder
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

    members: Mapping[str, int]  # each client's number of samples, by name
    name: str

    @classmethod
    def new(cls, members: Mapping[str, int]) -> Membership:
        """Return the membership of a federation that begins now."""
        return cls(dict(members), secrets.token_hex(8))

    @classmethod
    def load(cls, path: Path) -> Membership:
        """Read the membership from a checkpoint. Raises InputError, naming the file, if it is no federation's."""
        settings = checkpoint.load(path)[1].get("settings", {})
        if "members" not in settings or "federation" not in settings:
            raise InputError(f"checkpoint {path} is not that of a federation")
        return cls(settings["members"], settings["federation"])


def checked_name(name: object) -> str:
    """Return `name` if it is allowed as the name of a client. Raises InputError if not."""
    if not isinstance(name, str) or not CLIENT_NAME.fullmatch(name):
        raise InputError(
            f"name {str(name)[:64]!r} must be up to 64 letters, digits, '.', '-' and '_', "
            "beginning with a letter or a digit"
        )
    return name


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
    """Registers clients by name if they fit the federation, and remembers the node of each one."""

    def __init__(
        self,
        shape: tuple[int, ...],
        digest: str,
        version: str,
        members: Mapping[str, int] | None = None,
        max_clients: int | None = None,
        begun: bool = True,
        max_samples: int = 2**53,
        keys_of: Callable[[str], Collection[bytes]] | None = None,
    ) -> None:
        """Begin with no registered client; `shape`, `digest` and `version` are values that every client must have.

        members: numbers of samples of the clients that may register, by name; by default the first `max_clients`
        clients may register. begun: whether `members` comes from a federation that has begun; otherwise it comes from
        the run-config. max_samples: the most samples that a client may have if `members` is missing. keys_of:
        returns the public keys that the operator lists for a client; by default any key is accepted.
        """
        self._keys_of = keys_of
        self._common = {"shape": shape, "digest": digest, "version": version}
        self._members, self._max_clients, self._begun, self._max_samples = members, max_clients, begun, max_samples
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
        if self._members is None and len(self._samples) == self._max_clients:
            self._members, self._begun = self.members, True
        return True

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
        members = {name: info.samples} if self._members is None else self._members
        if name not in members:
            reason = "came after the federation had begun, and waits for the next"
            raise InputError(f"{name}: {reason if self._begun else 'is not one of the run-config members'}")
        if members[name] != info.samples:
            known = f"had {members[name]} when the federation began"
            known = known if self._begun else f"the run-config members say {members[name]}"
            raise InputError(f"{name}: has {info.samples} samples, and {known}")
        if self._keys_of is not None and key.public not in self._keys_of(name):
            raise InputError(f"{name}: its key is not one that the registry lists for it")
        if self._members is None and info.samples > self._max_samples:
            raise InputError(f"{name}: says {info.samples} samples, max-samples is {self._max_samples}")
