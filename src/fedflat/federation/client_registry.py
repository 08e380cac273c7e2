"""Which client is where, by what clients say of themselves."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.errors import InputError, printable
from .membership import checked_name
from .messages import ClientInfo


class ClientRegistry:
    """Clients by name, and the node of the network that each was last found at."""

    def __init__(
        self,
        shape: tuple[int, ...],
        digest: str,
        version: str,
        members: Mapping[str, int] | None = None,
        most: int | None = None,
        begun: bool = True,
        most_samples: int = 2**53,
    ) -> None:
        """What all clients must have in common.

        members: samples by name, if it is settled who they are, else the first `most` are. begun: whether it is settled
        because the federation has begun, and not by its operator. most_samples: that a client may have if it is not.
        """
        self._common = {"shape": shape, "digest": digest, "version": version}
        self._members, self._most, self._begun, self._most_samples = members, most, begun, most_samples
        self._nodes: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self.refused: dict[int, str] = {}  # nodes that are no client, and why

    @property
    def members(self) -> dict[str, int]:
        """Numbers of samples of all that have introduced themselves."""
        return dict(self._samples)

    def node(self, name: str) -> int | None:
        """Where a client was last found."""
        return self._nodes.get(name)

    def knows(self, node: int) -> bool:
        """Whether a client was last found there."""
        return node in self._nodes.values()

    def lose(self, present: set[int]) -> list[str]:
        """Forget nodes that are not among those present, and give the clients that were there; they may come back."""
        lost = sorted(name for name, node in self._nodes.items() if node not in present)
        self._nodes = {name: node for name, node in self._nodes.items() if node in present}
        self.refused = {node: why for node, why in self.refused.items() if node in present}
        return lost

    def hear(self, node: int, said: ClientInfo, registered: str | None = None) -> bool:
        """Take up a client, if it fits; else note why not. True if it was taken up.

        registered: the name that the node has proved to have, by its key, if its key has a name.
        """
        try:
            self._check(node, said, registered)
        except InputError as error:
            self.refuse(node, str(error))
            return False
        self.refused.pop(node, None)
        self._nodes = {name: place for name, place in self._nodes.items() if place != node}
        self._nodes[said.name], self._samples[said.name] = node, said.samples
        if self._members is None and len(self._samples) == self._most:
            self._members, self._begun = self.members, True
        return True

    def refuse(self, node: int, why: str) -> None:
        """Note why a node is no client, on one line: it may repeat what the node has said."""
        self.refused[node] = printable(why)

    def _check(self, node: int, said: ClientInfo, registered: str | None) -> None:
        name = checked_name(said.name)
        if registered not in (None, name):
            raise InputError(f"{name}: its key was registered with the name {registered}")
        for what, value in self._common.items():
            if getattr(said, what) != value:
                raise InputError(f"{name}: {what} is {str(getattr(said, what))[:64]}, the server's {value}")
        if type(said.samples) is not int or not 1 <= said.samples < 2**53:
            raise InputError(f"{name}: has {str(said.samples)[:20]} samples, at least one is needed")
        if self._nodes.get(name, node) != node:
            raise InputError(f"{name}: another node has this name")
        settled = {name: said.samples} if self._members is None else self._members
        if name not in settled:
            why = "came after the federation had begun, and waits for the next"
            raise InputError(f"{name}: {why if self._begun else 'is not one of the run-config members'}")
        if settled[name] != said.samples:
            known = f"had {settled[name]} when the federation began"
            known = known if self._begun else f"the run-config members say {settled[name]}"
            raise InputError(f"{name}: has {said.samples} samples, and {known}")
        if self._members is None and said.samples > self._most_samples:
            raise InputError(f"{name}: says {said.samples} samples, max-samples is {self._most_samples}")
