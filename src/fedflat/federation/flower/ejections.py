"""The members that the operator has ejected: a file in the server's folder, which the server reads before each round.

A federation's members and their numbers are fixed when it begins, and so is the N of its method. An ejected one keeps
its number and is never asked, like a client that is never drawn; admitted again, it goes on with its record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import InputError, printable
from ...files import locked, read_json, write_atomically
from .directory import FederationDirectory

FILE, LOCK = "ejected.json", ".ejected.lock"
REASON_LENGTH = 300  # characters


@dataclass(frozen=True)
class Ejections:
    """Who is ejected from the federation in a folder; several processes may read and write it."""

    path: Path

    def read(self) -> dict[str, str]:
        """The ejected members, with the operator's reasons. Raises InputError if the file is damaged."""
        file = self.path / FILE
        found = read_json(file) if file.exists() else {}
        if not isinstance(found, dict) or not all(isinstance(reason, str) for reason in found.values()):
            raise InputError(f"{file} is damaged: it must be an object of names and reasons")
        return found

    def eject(self, name: str, reason: str = "") -> None:
        """Ask no more of a member from the next round on.

        Raises InputError if it is no member or ejected already, or if nobody would be left.
        """
        members = self._members(name)
        with locked(self.path / LOCK, f"{self.path}: somebody else is ejecting or admitting a member"):
            ejected = self.read()
            if name in ejected:
                raise InputError(f"{name} is ejected already")
            if not members.keys() - ejected.keys() - {name}:
                raise InputError(f"{name} is the last member that is not ejected")
            self._write({**ejected, name: printable(reason)[:REASON_LENGTH]})

    def admit(self, name: str) -> None:
        """Ask an ejected member again from the next round on. Raises InputError if it is no member or not ejected."""
        self._members(name)
        with locked(self.path / LOCK, f"{self.path}: somebody else is ejecting or admitting a member"):
            ejected = self.read()
            if name not in ejected:
                raise InputError(f"{name} is not ejected")
            self._write({other: reason for other, reason in ejected.items() if other != name})

    def _members(self, name: str) -> Mapping[str, int]:
        members = FederationDirectory(self.path).members
        if name not in members:
            known = ", ".join(sorted(members)[:10]) or "nobody yet"
            raise InputError(
                f"{printable(name)[:80]} is no member: a federation's members are those that it began with ({known})"
            )
        return members

    def _write(self, ejected: Mapping[str, str]) -> None:
        text = json.dumps(dict(sorted(ejected.items())), indent=2) + "\n"
        write_atomically(self.path / FILE, lambda path: path.write_text(text))
