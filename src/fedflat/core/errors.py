"""Errors that a user is told in one line, apart from errors of the program itself."""

from __future__ import annotations

import unicodedata


class InputError(ValueError):
    """A value, file or combination that cannot work; the message is one line and names the field."""


class NonFiniteError(ArithmeticError):
    """Training produced NaN or infinity; the message names round and client."""


class ChangedWarning(UserWarning):
    """A run goes on with other versions or other code than it was begun with; its bits may differ."""


def printable(text: str) -> str:
    """`text` on one line, with control and formatting characters spelled out: names come from files and networks, and
    could move a terminal's cursor or begin a line of their own."""
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)
