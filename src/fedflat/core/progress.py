"""The callback by which every long computation reports how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # name, steps done, steps in all (or an estimate of them)
Steps = Callable[[int, int], None]  # a `Progress` without the name: steps done, steps in all


def no_progress(*_: object) -> None:
    """Ignore the progress."""
