"""Who takes part in a federation, for as long as it lasts."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError
from ..rounds import checkpoint

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a client; it can be a folder's
TOKEN = re.compile(r"[0-9a-f]{16}")  # the name of a federation


class FederationError(RuntimeError):
    """A federation that cannot go on; the message is one line."""


@dataclass(frozen=True)
class Membership:
    """The clients, and a name that no other federation has, even one of the same study."""

    members: Mapping[str, int]  # numbers of samples by client
    name: str

    @classmethod
    def founded(cls, members: Mapping[str, int]) -> Membership:
        """A new one."""
        return cls(dict(members), secrets.token_hex(8))

    @classmethod
    def stored(cls, path: Path) -> Membership:
        """That of a checkpoint. Raises InputError, naming the file, if it is none of a federation."""
        settings = checkpoint.load(path)[1].get("settings", {})
        if "members" not in settings or "federation" not in settings:
            raise InputError(f"checkpoint {path} is not that of a federation")
        return cls(settings["members"], settings["federation"])


def checked_name(name: object) -> str:
    """`name`, if it can be a client's. Raises InputError."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"name {str(name)[:64]!r} must be up to 64 letters, digits, '.', '-' and '_', "
            "of which the first is a letter or a digit"
        )
    return name


def checked_federation(name: object) -> str:
    """`name`, if it can be a federation's. Raises InputError."""
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise InputError(f"federation {str(name)[:64]!r} must be sixteen hexadecimal digits")
    return name
