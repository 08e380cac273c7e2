"""A program that waits until the process that started it is gone, however it ended, and ends what that one has left.

It needs nothing but the standard library, and is called with the mark of what it is to end. A process that is killed
cannot clean up; the system's signal at a parent's death reaches its children only; and Flower's programs start others,
which try for a long time to reach a SuperLink that has ended too.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

POLITE = 3.0  # seconds to end by oneself
LIMIT = 30.0  # seconds until it is given up


def marked(*marks: str) -> list[int]:
    """The numbers of the processes whose environment has all of these, "NAME=value" or "NAME="; only Linux tells."""
    place = Path("/proc")
    numbers = [int(path.name) for path in place.iterdir() if path.name.isdigit()] if place.is_dir() else []
    wanted = [mark.encode() for mark in marks]
    return [number for number in numbers if _has(_environment_of(number), wanted)]


def end(*marks: str, polite: float = POLITE, limit: float = LIMIT) -> None:
    """End all that have these marks, at first politely, until none is left."""
    begin = monotonic()
    while (left := marked(*marks)) and monotonic() < begin + limit:
        number = signal.SIGTERM if monotonic() < begin + polite else signal.SIGKILL
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        sleep(0.2)


def _has(environment: list[bytes], wanted: list[bytes]) -> bool:
    return all(any(x == mark or (mark.endswith(b"=") and x.startswith(mark)) for x in environment) for mark in wanted)


def _environment_of(number: int) -> list[bytes]:
    try:
        return Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []


if __name__ == "__main__":
    sys.stdin.buffer.read()  # it ends with the process that has its other end
    end(sys.argv[1])
