"""Errors and warnings that a user sees as one line, as distinct from errors in the program."""

from __future__ import annotations

import os
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONGEST = 200  # characters of a value in a message


class InputError(ValueError):
    """A value, a file or a combination of settings that cannot work; the message is one line and names the field."""


class FieldError(InputError):
    """A value that a field cannot have.

    key: the field; one inside another field is written with a dot, such as client.lr.
    problem: what is wrong, such as "must be a number, got 'x'".
    owner: the class or section that has the field; if it is empty, the message begins with the key.
    """

    def __init__(self, key: str, problem: str, owner: str = "") -> None:
        super().__init__(key, problem, owner)
        self.key, self.problem, self.owner = key, problem, owner

    def __str__(self) -> str:
        return f"{self.owner}.{self.key} {self.problem}" if self.owner else f"{self.key}: {self.problem}"


class MissingPackageError(InputError):
    """An operation needs an optional package that is not installed; the message names the package and the extra."""


class StackingError(InputError):
    """A model that torch cannot run for several clients at once, only for one after another."""


class NonFiniteError(ArithmeticError):
    """Training produced NaN or infinity; the message names round and client."""


class BrokenPromiseError(AssertionError):
    """A method violates the contract of methods; the message names the promise and the violation."""


class ChangedWarning(UserWarning):
    """A run continues with other versions or other code than before, so its results may differ in their last bits."""


def printable(text: str) -> str:
    """Return `text` on one line, with control and formatting characters written as escapes.

    Names come from files and networks; such characters could move a terminal's cursor or begin a new line.
    """
    if text.isprintable():  # nearly always; then no character is of these kinds
        return text
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """Shorten `text` by leaving out its middle if it has more than `longest` characters."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} [...] {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, printable; the name of its type if it has no message."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def with_type(error: BaseException, longest: int = 200) -> str:
    """Return the type of an error and, if it has a message, the first line of the message, shortened."""
    name = type(error).__name__
    return f"{name}: {shortened(first_line(error), longest)}" if str(error).strip() else name


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that the host or a GPU is out of memory; for the host, torch raises RuntimeError."""
    short = "OutOfMemory" in type(error).__name__ or "can't allocate memory" in str(error)
    return short or isinstance(error, MemoryError)


def imported_errors(*errors: type[Exception] | str) -> tuple[type[Exception], ...]:
    """Return error classes for `except`; a name like "pyarrow:ArrowException" is left out if pyarrow is not imported.

    Modules use this function where they should not import a library only to name its errors. A library that is not
    imported raises no errors.
    """
    found: list[type[Exception]] = []
    for error in errors:
        if isinstance(error, str):
            module, name = error.split(":")
            found += [getattr(sys.modules[module], name)] if module in sys.modules else []
        else:
            found.append(error)
    return tuple(found)


@contextmanager
def changes_in_one_line() -> Iterator[None]:
    """Show each `ChangedWarning` as "fedflat: warning: ..." inside the block, other warnings as Python shows them."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, ChangedWarning):
            usual(message, category, *place, **more)
        elif is_first_rank():
            print(f"fedflat: warning: {printable(str(message))}", file=sys.stderr)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def is_first_rank() -> bool:
    """Tell whether this process prints: it is the only one, or rank 0 of the processes that torchrun started."""
    return os.environ.get("RANK", "0") == "0"
