"""Warnings about changes since a run was started, each shown as one line on standard error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ..core.errors import ChangedWarning, printable
from ..engine.ranks import speaks


@contextmanager
def changes_in_one_line() -> Iterator[None]:
    """Inside the block a `ChangedWarning` is shown as "fedflat: warning: ..."; other warnings as Python shows them."""
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, ChangedWarning):
            if speaks():
                print(f"fedflat: warning: {printable(str(message))}", file=file or sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual
