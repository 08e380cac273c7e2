"""A program that waits until the process that started it has ended, and then ends the processes that it started.

It is needed because a process that is killed cannot clean up, the system's signal at the death of a parent reaches its
direct children only, and Flower's programs start others, which try for a long time to reach a SuperLink that has ended
too. Processes are recognised by a variable in their environment, given as "NAME=value". Only the standard library is
used, so that the program needs little memory.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

TERMINATE_SECONDS = 3.0  # until a process that ignores SIGTERM gets SIGKILL
LIMIT_SECONDS = 30.0  # until this gives up


def find_processes(*variables: str) -> list[int]:
    """List the ids of the processes with all of these variables, "NAME=value" or "NAME=" for any; Linux only."""
    proc = Path("/proc")
    ids = [int(path.name) for path in proc.iterdir() if path.name.isdigit()] if proc.is_dir() else []
    return [process for process in ids if _has_variables(process, variables)]


def end_processes(*variables: str, terminate_seconds: float = TERMINATE_SECONDS) -> None:
    """End all processes with these variables, and those that they start meanwhile; SIGTERM first, then SIGKILL."""
    begin = monotonic()
    while (left := find_processes(*variables)) and monotonic() < begin + LIMIT_SECONDS:
        number = signal.SIGTERM if monotonic() < begin + terminate_seconds else signal.SIGKILL
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        sleep(0.2)


def _has_variables(process: int, variables: tuple[str, ...]) -> bool:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False
    needed = map(str.encode, variables)
    return all(any(x.startswith(v) if v.endswith(b"=") else x == v for x in environment) for v in needed)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # returns when the process that holds the other end of the pipe has ended
    end_processes(sys.argv[1])
