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
    """A value, file or combination that cannot work; the message is one line and names the field."""


class MissingPackageError(InputError):
    """What was asked for needs an optional package that is not installed; the message names package and extra."""


class StackingError(InputError):
    """A model that torch cannot run for several clients at once, only for one after another."""


class NonFiniteError(ArithmeticError):
    """Training produced NaN or infinity; the message names round and client."""


class BrokenPromiseError(AssertionError):
    """A method does not keep what every method promises; the message says which part of it, and how."""


class ChangedWarning(UserWarning):
    """A run continues with other versions or other code than before; its results may differ in their bits."""


def printable(text: str) -> str:
    """Return `text` on one line, with control and formatting characters written as escapes.

    Names come from files and networks; such characters could move a terminal's cursor or begin a new line.
    """
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return `text`, without its middle if it has more than `longest` characters."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} [...] {text[-half:]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory was short, on the host or on a GPU; torch raises RuntimeError for the host's."""
    short = "OutOfMemory" in type(error).__name__ or "can't allocate memory" in str(error)
    return short or isinstance(error, MemoryError)


def imported_errors(*errors: type[Exception] | str) -> tuple[type[Exception], ...]:
    """Error classes for `except`; those given by a name, such as "pyarrow:ArrowException", only if it is imported.

    For modules that must not import a library only to name its errors: a library that is not imported raises none.
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
    """Tell whether this process is alone or the first of those that torchrun started: the one that prints."""
    return os.environ.get("RANK", "0") == "0"
