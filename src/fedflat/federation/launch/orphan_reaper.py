"""A program that waits until its parent process has ended, and then ends all processes that the parent started.

It is needed because a killed process cannot clean up. The signal that the system sends at the death of a parent reaches
only direct children, but Flower's programs start other programs. These try for a long time to reach the SuperLink, even
if the SuperLink has ended. The processes are recognised by a variable in their environment, which is given on the
command line as "NAME=value". Only the standard library is used, so that this program needs little memory.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

TERMINATE_SECONDS = 3.0  # until a process that ignores SIGTERM gets SIGKILL
LIMIT_SECONDS = 30.0  # until `end_processes` gives up


def find_processes(*variables: str) -> list[int]:
    """List the ids of the processes with all of these environment variables; "NAME=" matches any value. Linux only."""
    proc = Path("/proc")
    ids = [int(path.name) for path in proc.iterdir() if path.name.isdigit()] if proc.is_dir() else []
    return [process for process in ids if _has_variables(process, variables)]


def end_processes(*variables: str, terminate_seconds: float = TERMINATE_SECONDS) -> None:
    """End all processes with these environment variables, including processes that they start meanwhile.

    SIGTERM is sent first; SIGKILL after `terminate_seconds`. This function returns after `LIMIT_SECONDS` at the latest.
    """
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
