"""Ranks of one machine: they meet in a folder that only their owner can read, and authenticate each other.

torchrun's own rendezvous are TCP stores on all interfaces without authentication; one of them unpickles its input. Here
the store of torchrun's agent, which starts the ranks, is in the agent's memory, and the store of the ranks is a file.
gloo, which transfers the sums, has to listen on a port without authentication. Therefore it listens on the loopback
only, and each rank first sends each other rank a code that only a reader of the folder can compute.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from ..files import read_bytes, write_atomically

FOLDER = "FEDFLAT_RANKS_FOLDER"  # the environment variable with the folder where ranks meet
KEY, STORE = "key", "store"  # files in the folder
LOOPBACK = "127.0.0.1"
BACKEND = "fedflat-one-machine"  # the name of `OneMachine` as a rendezvous of torchrun


class OneMachine(RendezvousHandler):
    """A rendezvous of a single agent of torchrun, without a network."""

    def __init__(self) -> None:
        self._store = dist.HashStore()

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return False  # ranks meet in a file

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(LOOPBACK, 0))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "fedflat"

    def shutdown(self) -> bool:
        return True


@contextmanager
def meeting_place(folder: Path) -> Iterator[None]:
    """Write a secret key for the ranks to a file in `folder`; only the owner can read the file.

    Inside the block, the environment variable `FOLDER` has the folder's path.
    """
    write_atomically(folder / KEY, lambda path: path.write_bytes(secrets.token_bytes(32)), private=True)
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:  # later ranks of this process must not look for a removed folder
        os.environ.pop(FOLDER)
        if before is not None:
            os.environ[FOLDER] = before


def listen_on_loopback() -> None:
    """Let gloo listen on the loopback only, independently of the name of this machine."""
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def impostors(folder: Path, attempt: str, seconds: float) -> list[int]:
    """Exchange codes with each other rank, and return the ranks whose codes are wrong.

    In each pair of ranks one listens and the other connects, so an impostor has only one end of a connection. A code
    depends on its sender and its receiver, so it is useless on another connection. seconds: how long to wait for each
    rank. Raises RuntimeError if a rank does not answer.
    """
    key, rank, patience = read_bytes(folder / KEY), dist.get_rank(), timedelta(seconds=seconds)
    wrong = []
    for other in (i for i in range(dist.get_world_size()) if i != rank):
        seen = torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8)
        both = dist.isend(_code(key, attempt, rank, other), other), dist.irecv(seen, other)
        for work in cast("tuple[dist.Work, ...]", both):  # None is for groups that this rank is not in
            work.wait(patience)
        if not hmac.compare_digest(seen.numpy().tobytes(), _code(key, attempt, other, rank).numpy().tobytes()):
            wrong.append(other)
    return wrong


def _code(key: bytes, attempt: str, sender: int, receiver: int) -> torch.Tensor:
    """Return the code that `sender` sends to `receiver`, uint8 (32,)."""
    code = hmac.digest(key, f"fedflat ranks: attempt {attempt}, {sender} to {receiver}".encode(), "sha256")
    return torch.frombuffer(bytearray(code), dtype=torch.uint8)
