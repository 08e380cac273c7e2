"""Two network namespaces with a virtual cable between them: for the network, they are two machines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Machine:
    """A network namespace."""

    name: str
    interface: str
    address: str

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """A process that has only this machine's network."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines, removed after the block. Skips the test where network namespaces are not permitted."""
    names = (f"ff{os.getpid()}{end}" for end in "ab")
    one, other = (Machine(name, name, f"10.231.7.{i}") for i, name in enumerate(names, start=1))
    made: list[Machine] = []
    try:
        try:
            for machine in (one, other):
                _ip("netns", "add", machine.name)
                made.append(machine)
            _ip("link", "add", one.interface, "netns", one.name, "type", "veth", "peer", "name", other.interface,
                "netns", other.name)  # fmt: skip
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"network namespaces are not permitted here: {reason.strip()}")
        for machine in made:
            inside = ("-n", machine.name)
            _ip(*inside, "addr", "add", f"{machine.address}/24", "dev", machine.interface)
            _ip(*inside, "link", "set", machine.interface, "up")
            _ip(*inside, "link", "set", "lo", "up")
        yield one, other
    finally:
        for machine in made:
            _ip("netns", "del", machine.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
