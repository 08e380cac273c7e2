"""The error for what a user gave and cannot work, apart from errors of the program itself."""

from __future__ import annotations


class InputError(ValueError):
    """A value, file or combination that cannot work; the message is one line and names the field."""
