"""The list of members that are ejected or have left: a file in the server's folder, which it reads before each round.

An ejected member keeps its number and gets no requests, like a client that is never sampled; the N in the method's
equations stays. If the operator admits it again, it continues with its record. A member that has left for good keeps
its number, too, and N is that of the others from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ...core.errors import InputError, printable
from ...experiments.spec import participation_of
from ...files import locked
from ...rounds.checksums import read_checked, write_checked
from ..membership import fixed_members
from .directory import EJECTED as FILE
from .directory import FederationDirectory
from .event_log import read_events

LOCK = ".ejected.lock"
REASON_LENGTH = 300  # characters


@dataclass(frozen=True)
class Absence:
    """The reason why a member is not asked."""

    reason: str
    left: bool = False  # for good


@dataclass(frozen=True)
class Ejections:
    """The list of absent members in a federation's folder; several processes may read and write it.

    The file exists from the beginning of a federation: a missing file is an error, not an empty list.
    """

    path: Path

    def read(self) -> dict[str, Absence]:
        """Read the members that are ejected or have left. Raises InputError if the file is damaged or missing."""
        file = self.path / FILE
        if not file.exists() and FederationDirectory(self.path).has_begun:
            known = ", ".join(self._known_to_the_log()) or "nobody"
            raise InputError(
                f"{file} is missing; its log says that {known} is ejected: `fedflat flower eject` or `admit`, of any "
                "member, writes it again from the log"
            )
        found = read_checked(file) if file.exists() else {}
        absent = {name: _absence(entry) for name, entry in found.items()} if isinstance(found, dict) else {"": None}
        if None in absent.values():
            raise InputError(f"{file} is damaged: it must be an object of names and reasons")
        return {name: one for name, one in absent.items() if one is not None}

    def begin(self) -> None:
        """Write an empty list for a federation that has not begun. Raises InputError if it cannot be written."""
        if not (self.path / FILE).exists() and not FederationDirectory(self.path).has_begun:
            self._write({})

    def _known_to_the_log(self) -> dict[str, Absence]:
        """Return the members that are ejected or have left according to the log."""
        found: dict[str, Absence] = {}
        for event in read_events(self.path):
            if event["event"] in ("ejected", "left"):
                absence = Absence(str(event.get("reason", "")), event["event"] == "left")
                found[str(event.get("client"))] = absence
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
            _check_others(name, members, ejected)
            ejected[name] = Absence(printable(reason)[:REASON_LENGTH])

    def remove(self, name: str, reason: str = "") -> None:
        """Let a member, ejected or not, leave for good from the next round.

        Raises InputError if `name` is no member or has left already, if no member would remain, or if the study fixes
        the members.
        """
        spec = FederationDirectory(self.path).spec()
        if fixed := fixed_members(participation_of(spec.participation), spec.privacy is not None):
            raise InputError(f"{fixed}; eject {printable(name)[:80]} instead")
        with self._changing(name) as (members, ejected):
            _check_others(name, members, ejected)
            ejected[name] = Absence(printable(reason)[:REASON_LENGTH], left=True)

    def admit(self, name: str) -> None:
        """Send requests to an ejected member again, from the next round. Raises InputError if it is not ejected."""
        with self._changing(name) as (_, ejected):
            if name not in ejected:
                raise InputError(f"{name} is not ejected")
            del ejected[name]

    @contextmanager
    def _changing(self, name: str) -> Iterator[tuple[Mapping[str, int], dict[str, Absence]]]:
        """Yield all members and the list of absent members; write the list after the block.

        If the list is missing, it is first restored from the log. Raises InputError if `name` is no member or has left
        for good, or if another process holds the lock.
        """
        members = FederationDirectory(self.path).members
        if name not in members:
            known = ", ".join(sorted(members)[:10]) or "nobody yet"
            raise InputError(
                f"{printable(name)[:80]} is no member: members are those that the federation began with, and those "
                f"that have joined ({known})"
            )
        with locked(self.path / LOCK, f"{self.path}: somebody else is ejecting or admitting a member"):
            if not (self.path / FILE).exists():
                self._write(self._known_to_the_log())
            ejected = self.read()
            if name in ejected and ejected[name].left:
                raise InputError(f"{name} has left for good")
            yield members, ejected
            self._write(ejected)

    def _write(self, ejected: Mapping[str, Absence]) -> None:
        entries = {name: asdict(one) if one.left else one.reason for name, one in sorted(ejected.items())}
        write_checked(self.path / FILE, entries, private=True)


def _absence(entry: object) -> Absence | None:
    """Return an entry of the file; None if it is damaged."""
    match entry:
        case str(reason):
            return Absence(reason)
        case {"reason": str(reason), "left": True}:
            return Absence(reason, left=True)
    return None


def _check_others(name: str, members: Mapping[str, int], ejected: Mapping[str, Absence]) -> None:
    """Raise InputError if there is no other member to ask."""
    if not members.keys() - ejected.keys() - {name}:
        raise InputError(f"{name} is the last member that is not ejected")
