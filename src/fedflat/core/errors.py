"""Errors that a user is told in one line, apart from errors of the program itself."""

from __future__ import annotations


class InputError(ValueError):
    """A value, file or combination that cannot work; the message is one line and names the field."""


class NonFiniteError(ArithmeticError):
    """Training produced NaN or infinity; the message names round and client."""
