"""Warnings about changes since a run was started, each shown as one line on standard error."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..core.errors import ChangedWarning, printable


@contextmanager
def changes_in_one_line() -> Iterator[None]:
    """Inside the block a `ChangedWarning` is shown as "fedflat: warning: ..."; other warnings as Python shows them."""
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
    """Whether this process is alone or the first of those that torchrun started: the one that prints."""
    return os.environ.get("RANK", "0") == "0"
