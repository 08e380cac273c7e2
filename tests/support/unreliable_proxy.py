"""A TCP proxy on the loopback that splits, delays, stalls, half-closes and cuts connections, all drawn from one seed.

What is said within a connection of TLS cannot be reordered. Requests are: those that were cut are sent again, after
others, and those that stall are overtaken.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

HOST = "127.0.0.1"
FATES = {"cut": 45, "stalled and cut": 15, "half-closed": 15, "stalled": 15, "left alone": 10}  # weights
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST
LATEST = 60.0  # seconds after which a connection is cut that was to be cut, however little it has said


@dataclass
class UnreliableProxy:
    """Connections to `address` go to `target`, a port; what is done to them is counted in `done`."""

    target: int
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    connections: int = 0

    def __post_init__(self) -> None:
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        self._ends: list[socket.socket] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield
        finally:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            for end in (self._server, *self._ends):
                end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self.connections += 1
                self._ends.append(near)
                try:
                    far = socket.create_connection((HOST, self.target), 10)
                except OSError:
                    near.close()
                    continue
                self._ends.append(far)
                Connection(self, near, far, random.Random(f"{self.seed} {self.connections}")).start()


class Connection:
    """One connection, and its fate after some bytes."""

    def __init__(self, proxy: UnreliableProxy, near: socket.socket, far: socket.socket, draws: random.Random) -> None:
        self.proxy, self.ends, self.draws = proxy, (near, far), draws
        self.fate = draws.choices(list(FATES), list(FATES.values()))[0]
        self.left = int(10 ** draws.uniform(3, 5.5))  # bytes, both ways, until it happens
        self.begun = time.monotonic()
        self.lock = threading.Lock()

    def start(self) -> None:
        for one, other in (self.ends, self.ends[::-1]):
            one.settimeout(1.0)
            threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while True:
                try:
                    piece = one.recv(self.draws.choice((7, 100, 1000, 16384)))
                except TimeoutError:
                    piece = None
                if piece == b"":
                    break
                if piece:
                    other.settimeout(None)
                    other.sendall(piece)
                    other.settimeout(1.0)
                self._suffer(other, len(piece or b""))
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def _suffer(self, other: socket.socket, number: int) -> None:
        with self.lock:
            self.left -= number
            late = "cut" in self.fate and time.monotonic() > self.begun + LATEST
            if self.fate == "left alone" or (self.left > 0 and not late):
                return
            self.proxy.done[self.fate] += 1
            fate, self.fate = self.fate, "left alone"
        if "stalled" in fate:
            time.sleep(self.draws.uniform(0.5, 4))
        if fate == "half-closed":
            other.shutdown(socket.SHUT_WR)
            time.sleep(self.draws.uniform(0, 2))
        if fate != "stalled":
            for end in self.ends:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
                end.close()
