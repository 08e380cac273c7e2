"""The names of a federation's clients."""

from __future__ import annotations

import re

from ..core.errors import InputError

CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also safe as the name of a folder


def checked_name(name: object) -> str:
    """Return `name` if it is allowed as the name of a client. Raises InputError if not."""
    if not isinstance(name, str) or not CLIENT_NAME.fullmatch(name):
        raise InputError(
            f"name {str(name)[:64]!r} must be up to 64 letters, digits, '.', '-' and '_', "
            "beginning with a letter or a digit"
        )
    return name
