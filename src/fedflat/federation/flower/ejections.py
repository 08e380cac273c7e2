"""The list of ejected members: a file in the server's folder, which the server reads before each round.

A federation's members, their numbers and the N in the method's equations are fixed when the federation begins. An
ejected member keeps its number and gets no requests, like a client that is never sampled. If the operator admits it
again, it continues with its record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import InputError, printable
from ...files import locked
from ...rounds.checksums import read_checked, write_checked
from .directory import EJECTED as FILE
from .directory import FederationDirectory
from .event_log import read_events

LOCK = ".ejected.lock"
REASON_LENGTH = 300  # characters


@dataclass(frozen=True)
class Ejections:
    """The list of ejected members in a federation's folder; several processes may read and write it.

    The file exists from the beginning of a federation: a missing file is an error, not an empty list.
    """

    path: Path

    def read(self) -> dict[str, str]:
        """Read the ejected members and the reasons. Raises InputError if the file is damaged or missing."""
        file = self.path / FILE
        if not file.exists() and FederationDirectory(self.path).has_begun:
            known = ", ".join(self._known_to_the_log()) or "nobody"
            raise InputError(
                f"{file} is missing; its log says that {known} is ejected: `fedflat flower eject` or `admit`, of any "
                "member, writes it again from the log"
            )
        found = read_checked(file) if file.exists() else {}
        if not isinstance(found, dict) or not all(isinstance(reason, str) for reason in found.values()):
            raise InputError(f"{file} is damaged: it must be an object of names and reasons")
        return found

    def begin(self) -> None:
        """Write an empty list for a federation that has not begun. Raises InputError if it cannot be written."""
        if not (self.path / FILE).exists() and not FederationDirectory(self.path).has_begun:
            self._write({})

    def _known_to_the_log(self) -> dict[str, str]:
        """Return the members that are ejected according to the log, with the reasons."""
        found: dict[str, str] = {}
        for event in read_events(self.path):
            if event["event"] == "ejected":
                found[str(event.get("client"))] = str(event.get("reason", ""))
            elif event["event"] == "admitted":
                found.pop(str(event.get("client")), None)
        return found

    def eject(self, name: str, reason: str = "") -> None:
        """Stop sending training requests to a member, from the next round.

        Raises InputError if `name` is no member or is ejected already, or if no member would remain.
        """
        with self._changing(name) as (members, ejected):
            if name in ejected:
                raise InputError(f"{name} is ejected already")
            if not members.keys() - ejected.keys() - {name}:
                raise InputError(f"{name} is the last member that is not ejected")
            ejected[name] = printable(reason)[:REASON_LENGTH]

    def admit(self, name: str) -> None:
        """Send requests to an ejected member again, from the next round. Raises InputError if it is not ejected."""
        with self._changing(name) as (_, ejected):
            if name not in ejected:
                raise InputError(f"{name} is not ejected")
            del ejected[name]

    @contextmanager
    def _changing(self, name: str) -> Iterator[tuple[Mapping[str, int], dict[str, str]]]:
        """Yield all members and the list of ejected members; write the list after the block.

        If the list is missing, it is first restored from the log. Raises InputError if `name` is no member, or if
        another process holds the lock.
        """
        members = FederationDirectory(self.path).members
        if name not in members:
            known = ", ".join(sorted(members)[:10]) or "nobody yet"
            raise InputError(
                f"{printable(name)[:80]} is no member: a federation's members are those that it began with ({known})"
            )
        with locked(self.path / LOCK, f"{self.path}: somebody else is ejecting or admitting a member"):
            if not (self.path / FILE).exists():
                self._write(self._known_to_the_log())
            ejected = self.read()
            yield members, ejected
            self._write(ejected)

    def _write(self, ejected: Mapping[str, str]) -> None:
        write_checked(self.path / FILE, dict(sorted(ejected.items())), private=True)
