"""Several processes, on one or more machines, that carry out one simulation together: torch.distributed's ranks.

Every rank has all settings and knows every cohort; it trains its part of it. What they exchange in a round are the sums
of what the server receives, so that every rank makes the next server state itself, bit by bit the same.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError, NonFiniteError
from ..data.federated import Index
from ..rounds.aggregation import RunningMean
from ..rounds.checkpoint import DamagedError, Stream
from .client_store import ClientStore

PATIENCE = 1800.0  # seconds that a rank waits for the others
MEETING = 60.0  # seconds that it waits, at the beginning, for torchrun, which may have ended meanwhile


class RankError(RuntimeError):
    """The ranks have lost each other: one has ended, or does not answer."""


class Ranks:
    """All of them, seen from one; this class is a process that is alone."""

    number = 1
    index = 0
    alone = True  # False for one that was started as a rank, even the only one

    def share(self, work: Index, owners: Index | None) -> Index:
        """Which clients of a cohort this rank trains: places (n,), rising.

        work: local steps of each client (c,). owners: the rank of each (c,), where records stay with their rank.
        """
        return np.arange(len(work))

    def owners(self, clients: Index) -> Index:
        """The rank that keeps the records of each of `clients` (c,)."""
        return np.zeros(len(clients), dtype=np.int64)

    def owned(self, clients: Index) -> NDArray[np.bool_]:
        """Which of the `clients` (c,) this rank keeps the records of."""
        return np.ones(len(clients), dtype=bool)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What one rank raises inside the block, all raise after it."""
        yield

    def first(self, value: Any) -> Any:
        """The value of rank 0, which JSON can hold."""
        return value

    def same(self, value: str, what: str) -> None:
        """Raise InputError on all ranks unless `value`, which is `what` in words, is the same on all."""

    def most(self, number: int) -> int:
        """The largest number that a rank has."""
        return number

    def total(self, number: int) -> int:
        """The sum of what the ranks have."""
        return number

    def add_up(self, mean: RunningMean, drifts: Tensor) -> None:
        """Add the sums and drifts (c,) of all ranks, in place."""

    @contextmanager
    def collected(self, store: ClientStore, folder: Path) -> Iterator[dict[str, Tensor | Stream] | None]:
        """On rank 0, what a checkpoint in `folder` must hold of the records of all; others get None, and help."""
        yield store.tensors(folder)


ALONE = Ranks()


class Joined(Ranks):
    """One of those that were started together."""

    alone = False

    def __init__(self) -> None:
        """Use `joined`."""
        self.number, self.index = dist.get_world_size(), dist.get_rank()

    def share(self, work: Index, owners: Index | None) -> Index:
        """See `Ranks`. By owner, or by load: the client with most work to the rank that has least so far."""
        if owners is not None:
            return np.flatnonzero(owners == self.index)
        load, taker = np.zeros(self.number, dtype=np.int64), np.empty(len(work), dtype=np.int64)
        for place in np.argsort(-work, kind="stable"):
            taker[place] = load.argmin()
            load[taker[place]] += work[place]
        return np.flatnonzero(taker == self.index)

    def owned(self, clients: Index) -> NDArray[np.bool_]:
        """See `Ranks`."""
        owned: NDArray[np.bool_] = self.owners(clients) == self.index
        return owned

    def owners(self, clients: Index) -> Index:
        """See `Ranks`."""
        return clients % self.number

    @contextmanager
    def together(self) -> Iterator[None]:
        """See `Ranks`."""
        mine: Exception | None = None
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            mine = error
        if self.most(int(mine is not None)):
            told = self._of_all(mine and _told(mine))
            raise mine or _raised(next(error for error in told if error is not None))

    def first(self, value: Any) -> Any:
        """See `Ranks`."""
        text = _bytes(value)
        with _connected():
            dist.broadcast(size := torch.tensor(len(text)), 0)
            dist.broadcast(text := text.new_zeros(int(size)) if self.index else text, 0)
        return _value(text)

    def same(self, value: str, what: str) -> None:
        """See `Ranks`."""
        values = self._of_all(value)
        other = next((rank for rank, its in enumerate(values) if its != values[0]), None)
        if other is not None:
            raise InputError(f"{what} is {values[0]} on rank 0 and {values[other]} on rank {other}")

    def most(self, number: int) -> int:
        """See `Ranks`."""
        return int(self._reduced(torch.tensor(number), dist.ReduceOp.MAX))

    def total(self, number: int) -> int:
        """See `Ranks`."""
        return int(self._reduced(torch.tensor(number)))

    def add_up(self, mean: RunningMean, drifts: Tensor) -> None:
        """See `Ranks`. Exact: of each drift all ranks but one have zero, and sums are of whole numbers."""
        sums = list(mean.sums())
        tops = self._reduced(torch.tensor([x.top for x in sums]), dist.ReduceOp.MAX)
        for x, top in zip(sums, tops.tolist(), strict=True):
            x.raise_to(top)
            self._reduced(x.sums)
        self._reduced(mean.counts)
        self._reduced(drifts)

    @contextmanager
    def collected(self, store: ClientStore, folder: Path) -> Iterator[dict[str, Tensor | Stream] | None]:
        """See `Ranks`. Rank 0 asks for some rows of a field at a time, and those who keep them send them."""
        if not store.keeps:
            yield None if self.index else store.tensors(folder)
        elif self.index:
            self._of_all(store.seen().tolist())
            while (asked := self.first(None)) is not None:
                self._send(store, asked["field"], np.array(asked["clients"]))
            yield None
        else:
            clients = np.sort(np.concatenate(self._of_all(store.seen().tolist()))).astype(np.int64)
            try:
                yield store.content(clients, partial(self._fetched, store))
            finally:
                self.first(None)

    def _fetched(self, store: ClientStore, name: str, clients: Index) -> Tensor:
        """On rank 0: one field of `clients`, (c, width). Raises what a rank raises that reads some of them.

        What the others send is taken first, whatever happens here, as they wait until it is.
        """
        self.first({"field": name, "clients": clients.tolist()})
        owners, empty = self.owners(clients), store.rows(name, clients[:0]).cpu()
        places = {rank: np.flatnonzero(owners == rank) for rank in range(self.number)}
        sent = {rank: self._received(rank, empty, len(its)) for rank, its in places.items() if rank and len(its)}
        rows = empty.new_empty(len(clients), empty.shape[1])
        for rank, part in sent.items():
            if isinstance(part, Exception):
                raise part
            rows[places[rank]] = part
        rows[places[0]] = store.rows(name, clients[places[0]]).cpu()
        return rows

    def _received(self, rank: int, empty: Tensor, number: int) -> Tensor | Exception:
        """What `rank` sends: so many rows, or the error that it met."""
        with _connected():
            dist.recv(size := torch.tensor(0), rank)
            dist.recv(text := torch.zeros(int(size), dtype=torch.uint8), rank)
            problem = _value(text)
            if problem is not None:
                return _raised(problem)
            dist.recv(part := empty.new_empty(number, empty.shape[1]), rank)
        return part

    def _send(self, store: ClientStore, name: str, clients: Index) -> None:
        """On another rank: send rank 0 what it has asked for, or say why not."""
        mine = clients[self.owned(clients)]
        if not len(mine):
            return
        rows, problem = None, None
        try:
            rows = store.rows(name, mine).cpu().contiguous()
        except Exception as error:
            problem = _told(error)  # rank 0 raises it, and so do all
        text = _bytes(problem)
        with _connected():
            dist.send(torch.tensor(len(text)), 0)
            dist.send(text, 0)
            if rows is not None:
                dist.send(rows, 0)

    def _of_all(self, value: Any) -> list[Any]:
        """The values of all ranks, which JSON can hold."""
        text = _bytes(value)
        longest = self.most(len(text))
        sizes = [torch.tensor(0) for _ in range(self.number)]
        texts = [text.new_zeros(longest) for _ in range(self.number)]
        with _connected():
            dist.all_gather(sizes, torch.tensor(len(text)))
            dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - len(text))))
        return [_value(its[: int(size)]) for its, size in zip(texts, sizes, strict=True)]

    def _reduced(self, x: Tensor, how: Any = dist.ReduceOp.SUM) -> Tensor:
        """`x` with what all ranks have, in place."""
        with _connected():
            dist.all_reduce(x, how)
        return x


def _bytes(value: Any) -> Tensor:
    """`value` as JSON. Never pickled: what came over a network would be run when it is read."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _value(text: Tensor) -> Any:
    return json.loads(text.numpy().tobytes())


def _told(error: Exception) -> dict[str, str]:
    """An error, as ranks tell each other."""
    return {"kind": type(error).__name__, "text": str(error)}


def _raised(told: dict[str, str]) -> Exception:
    """The error of another rank."""
    kind = {one.__name__: one for one in (InputError, DamagedError, NonFiniteError)}.get(told["kind"])
    return kind(told["text"]) if kind else RuntimeError(f"{told['kind']}: {told['text']}")


def is_launched() -> bool:
    """Whether torchrun, or what sets the same variables, has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def joined(patience: float = PATIENCE) -> Iterator[Ranks]:
    """The ranks that this process was started as one of; a process that torchrun has not started is alone.

    patience: seconds that a rank waits for the others. Raises InputError for what cannot be started again, RankError
    if the others are not there.
    """
    if not is_launched():
        yield ALONE
        return
    _end_with_agent()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with _connected():
        dist.init_process_group(timeout=timedelta(seconds=patience), **_meeting_point(patience))
    try:
        yield Joined()
    finally:
        dist.destroy_process_group()


def _meeting_point(patience: float) -> dict[str, Any]:
    """Where the ranks meet, as `init_process_group` takes it.

    torchrun lets them meet in a store of its own, which still holds the addresses of those that died when it starts
    them again (pytorch#135712): then every attempt needs room of its own there. Attempts are counted on each machine.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {"backend": backend}
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1 and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise InputError("to start ranks on several machines again, torchrun needs the environment variable "
                         "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")  # fmt: skip
    store, rank, number = next(dist.rendezvous("env://", timeout=timedelta(seconds=min(patience, MEETING))))
    store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return {"backend": backend, "store": store, "rank": rank, "world_size": number}


@contextmanager
def _connected() -> Iterator[None]:
    """Errors of the connection in one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0].strip()
        raise RankError(f"rank {os.environ['RANK']} has lost the others: {first}") from error


def _end_with_agent() -> None:
    """Have the system end this process with torchrun, which would leave its ranks behind if it were killed."""
    if sys.platform != "linux":
        return
    agent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != agent:  # it has ended just now
        os._exit(1)
