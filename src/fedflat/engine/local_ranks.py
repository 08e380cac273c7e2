"""Ranks of one machine: they meet in a folder that their owner alone can read, and prove to each other who they are.

torchrun's own meeting places are TCP stores on all interfaces, which whoever reaches them can write to; one of them
unpickles what it reads. Here the agent's store is in its memory, and the ranks' store is a file. gloo, which carries
the sums, has to listen on a port and asks nobody who connects: it listens on the loopback alone, and each rank shows
each other one a code that only a reader of the folder can compute, before anything else is sent.
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

FOLDER = "FEDFLAT_RANKS_FOLDER"  # the variable that tells ranks where they meet
KEY, STORE = "key", "store"  # files in the folder
LOOPBACK = "127.0.0.1"
BACKEND = "fedflat-one-machine"  # its name among the rendezvous of torchrun


class OneMachine(RendezvousHandler):
    """The meeting of one agent of torchrun with itself; it needs no network."""

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
    """Write the key of the ranks to `folder`, which the owner alone can read, and tell ranks started here of it."""
    write_atomically(folder / KEY, lambda path: path.write_bytes(secrets.token_bytes(32)), private=True)
    before = os.environ.get(FOLDER)
    os.environ[FOLDER] = str(folder)
    try:
        yield
    finally:  # ranks that this process starts later are not told of a folder that is gone
        os.environ.pop(FOLDER)
        if before is not None:
            os.environ[FOLDER] = before


def meeting_store(folder: Path, attempt: str, number: int) -> dist.Store:
    """Return the store of one attempt: a killed attempt's still has the addresses of its ranks (pytorch#135712)."""
    return dist.FileStore(str(folder / f"{STORE}-{attempt}"), number)


def listen_on_loopback() -> None:
    """Have gloo listen on the loopback alone, whatever the name of this machine resolves to."""
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def impostors(folder: Path, attempt: str, seconds: float) -> list[int]:
    """Show each other rank this one's code, and return the ranks whose codes are wrong.

    Of each pair one rank listens and the other connects, so whoever has connected in its place holds one end only; a
    code names both ranks and is of no use elsewhere. seconds: to wait for each rank. Raises RuntimeError if one does
    not answer.
    """
    key, rank, patience = read_bytes(folder / KEY), dist.get_rank(), timedelta(seconds=seconds)
    found = []
    for other in (i for i in range(dist.get_world_size()) if i != rank):
        seen = torch.zeros(hashlib.sha256().digest_size, dtype=torch.uint8)
        both = dist.isend(_code(key, attempt, rank, other), other), dist.irecv(seen, other)
        for work in cast("tuple[dist.Work, ...]", both):  # None is for groups that this rank is not in
            work.wait(patience)
        if not hmac.compare_digest(seen.numpy().tobytes(), _code(key, attempt, other, rank).numpy().tobytes()):
            found.append(other)
    return found


def _code(key: bytes, attempt: str, sender: int, receiver: int) -> torch.Tensor:
    """Return the code that `sender` shows `receiver`, (32,) in uint8."""
    code = hmac.digest(key, f"fedflat ranks: attempt {attempt}, {sender} to {receiver}".encode(), "sha256")
    return torch.frombuffer(bytearray(code), dtype=torch.uint8)
