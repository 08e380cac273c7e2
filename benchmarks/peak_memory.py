"""How much memory a process took at its peak, as Linux tells it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PROCESS = Path("/proc/self")


class Peak:
    """The peak of resident memory from now on, of this process and of those it starts, above what it has now.

    A process that is started is counted above the same base, as it imports the same modules. Pages that processes
    share are counted for each of them.
    """

    def __init__(self) -> None:
        self._known = os.access(PROCESS / "clear_refs", os.W_OK)
        if self._known:
            (PROCESS / "clear_refs").write_text("5")  # the peak is counted from here
            self._base = _bytes(PROCESS, "VmRSS")

    def bytes(self) -> int | None:
        """Return the peak so far in bytes; None where the system does not tell."""
        if not self._known:
            return None
        return sum(max(0, _bytes(process, "VmHWM") - self._base) for process in (PROCESS, *_started()))


def _started() -> list[Path]:
    """Return the processes that this one has started and that still run."""
    children = [path.read_text().split() for path in (PROCESS / "task").glob("*/children")]
    return [Path("/proc") / number for numbers in children for number in numbers]


def _bytes(process: Path, name: str) -> int:
    """Return a number that Linux tells of a process; 0 of one that has just ended."""
    with suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0
