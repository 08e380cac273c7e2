"""The clients of a federation, which are fixed when it begins, and checks of the names of clients and federations."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError
from ..rounds import checkpoint

CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also safe as the name of a folder
FEDERATION_NAME = re.compile(r"[0-9a-f]{16}")


class FederationError(RuntimeError):
    """A federation cannot continue; the message is one line."""


class RoundFailedError(FederationError):
    """A round has no result, such as when too few clients replied; the model is as it was before the round."""


@dataclass(frozen=True)
class Membership:
    """The clients of a federation and its random name, which differs between two federations of the same study."""

    members: Mapping[str, int]  # numbers of samples by client
    name: str

    @classmethod
    def new(cls, members: Mapping[str, int]) -> Membership:
        """The membership of a federation that begins now."""
        return cls(dict(members), secrets.token_hex(8))

    @classmethod
    def load(cls, path: Path) -> Membership:
        """Read the membership from a checkpoint. Raises InputError, naming the file, if it is not a federation's."""
        settings = checkpoint.load(path)[1].get("settings", {})
        if "members" not in settings or "federation" not in settings:
            raise InputError(f"checkpoint {path} is not that of a federation")
        return cls(settings["members"], settings["federation"])


def checked_name(name: object) -> str:
    """`name`, if it is allowed as the name of a client. Raises InputError if not."""
    if not isinstance(name, str) or not CLIENT_NAME.fullmatch(name):
        raise InputError(
            f"name {str(name)[:64]!r} must be up to 64 letters, digits, '.', '-' and '_', "
            "of which the first is a letter or a digit"
        )
    return name


def checked_federation(name: object) -> str:
    """`name`, if it is allowed as the name of a federation. Raises InputError if not."""
    if not isinstance(name, str) or not FEDERATION_NAME.fullmatch(name):
        raise InputError(f"federation {str(name)[:64]!r} must be sixteen hexadecimal digits")
    return name
