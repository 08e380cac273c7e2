"""Errors that a user sees as one line, as distinct from errors in the program."""

from __future__ import annotations

import unicodedata


class InputError(ValueError):
    """A value, file or combination that cannot work; the message is one line and names the field."""


class NonFiniteError(ArithmeticError):
    """Training produced NaN or infinity; the message names round and client."""


class ChangedWarning(UserWarning):
    """A run continues with other versions or other code than before; its results may differ in their bits."""


def printable(text: str) -> str:
    """`text` on one line, with control and formatting characters written as escapes.

    Names come from files and networks; such characters could move a terminal's cursor or begin a new line.
    """
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)
