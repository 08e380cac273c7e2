"""Another, unprivileged user of this machine, and the sockets on which processes listen."""

from __future__ import annotations

import encodings.idna  # the other user cannot read where Python is installed  # noqa: F401
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
LISTENING = "0A"  # of TCP, in /proc/net
needs_two_users = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="another user is tried by root, on Linux"
)


def as_other_user(attempt: Callable[[], Any]) -> Any:
    """What `attempt` returns, as JSON, in a process of the user `nobody`; an error is its last line."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            found = attempt()
        except BaseException:
            found = traceback.format_exc()
        with os.fdopen(writer, "w") as file:
            json.dump(found, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = json.load(file)
    os.waitpid(process, 0)
    return found


def refusal(attempt: Callable[[], Any]) -> str:
    """The name of the error that `attempt` raises, "" if it raises none."""
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return ""


def listening_sockets(processes: Iterable[int]) -> set[tuple[int, str, int]]:
    """(process, address, port) of every TCP socket on which one of the processes listens."""
    sockets = _listening()
    found = set()
    for process in processes:
        for handle in _handles(process):
            if handle in sockets:
                found.add((process, *sockets[handle]))
    return found


def _handles(process: int) -> list[str]:
    """What the open files of a process are, such as socket:[1234]."""
    found = []
    with suppress(OSError):  # it has ended
        for path in list(Path(f"/proc/{process}/fd").iterdir()):
            with suppress(OSError):  # the file was closed
                found.append(os.readlink(path))
    return found


def _listening() -> dict[str, tuple[str, int]]:
    """Address and port of all TCP sockets that listen, by how they are named among a process's files."""
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path(f"/proc/net/{name}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            words = line.split()
            if words[3] == LISTENING:
                address, port = words[1].split(":")
                text = bytes.fromhex(address)
                ordered = b"".join(text[i : i + 4][::-1] for i in range(0, len(text), 4))
                found[f"socket:[{words[9]}]"] = socket.inet_ntop(family, ordered), int(port, 16)
    return found


def documented_listeners(command: str) -> set[tuple[str, str]]:
    """(program, address) of what listens while `command` runs, as the page of threats says."""
    page = (Path(__file__).parents[2] / "docs" / "threat_model.md").read_text()
    table = page.split("## Which sockets listen")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")
    ]
    return {(row[1], row[2].split(",")[0].strip("`")) for row in rows if row[0].strip("`") == command}


def command_line(process: int) -> str:
    """The words of a process's command, "" if it has ended; every user of the machine can read them."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
