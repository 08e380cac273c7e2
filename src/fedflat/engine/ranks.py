"""Ranks: several processes of torch.distributed, on one or more machines, that compute one simulation together.

Every rank has all settings, knows every cohort, and trains a part of each cohort. In each round the ranks add up the
records that the server receives; then every rank computes the next server state, with the same bits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from ..data.types import Index
from ..operating_system import refuse_on_windows
from ..parent_process import end_with
from ..rounds.aggregation import RunningMean
from ..rounds.checkpoint import DamagedError, Stream
from . import local_ranks
from .client_store import ClientStore

PATIENCE = 1800.0  # seconds that a rank waits for the others
MEETING = 60.0  # seconds that a rank waits at its start for torchrun, which may have ended


class RankError(RuntimeError):
    """A rank has ended or does not answer, so that the other ranks cannot continue."""


@dataclass(frozen=True)
class Ranks:
    """The processes that compute one simulation together, as seen by one of them; by default there is only one.

    Every rank must call the same methods in the same order: most of them wait until all ranks have called them.
    """

    number: int = 1  # of ranks
    index: int = 0  # of this rank, from 0
    alone: bool = True  # False for a process that was started as a rank, even if it is the only one

    def share(self, work: Index, owners: Index | None) -> Index:
        """Return the places in the cohort (n,), ascending, of the clients that this rank trains.

        work: local steps of each client (c,). owners: the rank that keeps the record of each client (c,), and then also
        trains it. Without owners, clients are assigned by falling work, each to the rank with the least work so far.
        """
        if owners is None:
            load, owners = np.zeros(self.number, dtype=np.int64), np.empty(len(work), dtype=np.int64)
            for place in np.argsort(-work, kind="stable"):
                owners[place] = load.argmin()
                load[owners[place]] += work[place]
        return np.flatnonzero(owners == self.index)

    def owners(self, clients: Index) -> Index:
        """Return the rank that keeps the records of each of `clients` (c,)."""
        return clients % self.number

    def owned(self, clients: Index) -> NDArray[np.bool_]:
        """Return for each of `clients` (c,) whether this rank keeps its record."""
        owned: NDArray[np.bool_] = self.owners(clients) == self.index
        return owned

    @contextmanager
    def together(self) -> Iterator[None]:
        """Re-raise an error of any rank on all ranks, at the end of the block."""
        if self.number == 1:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except RankError:
            raise
        except Exception as error:
            own = error
        if self.most(int(own is not None)):
            errors = self.gather(own and {"kind": type(own).__name__, "text": str(own)})
            if own is not None:
                raise own
            other = next(error for error in errors if error is not None)
            kind = {cls.__name__: cls for cls in (InputError, DamagedError, NonFiniteError)}.get(other["kind"])
            raise kind(other["text"]) if kind else RuntimeError(f"{other['kind']}: {other['text']}")

    def first(self, value: Any) -> Any:
        """Return the `value` of rank 0; it must be representable in JSON."""
        return self._broadcast(value, 0)

    def gather(self, value: Any) -> list[Any]:
        """Return the `value` of every rank, in the order of the ranks; each must be representable in JSON."""
        return [self._broadcast(value, rank) for rank in range(self.number)]

    def most(self, number: int) -> int:
        """Return the maximum of `number` over all ranks."""
        return int(self._reduce(torch.tensor(number), dist.ReduceOp.MAX))

    def total(self, number: int) -> int:
        """Return the sum of `number` over all ranks."""
        return int(self._reduce(torch.tensor(number)))

    def summed(self, numbers: Tensor) -> Tensor:
        """Return `numbers` added up over all ranks, in place."""
        return self._reduce(numbers)

    def add_up(self, mean: RunningMean, *of_clients: Tensor) -> None:
        """Add up the sums in `mean`, and the tensors `of_clients` (c,), over all ranks, in place.

        This is exact: the sums are sums of integers, and each entry of `of_clients` is zero on all ranks but one.
        """
        if self.number == 1:
            return
        sums = list(mean.sums())
        tops = self._reduce(torch.tensor([x.top for x in sums]), dist.ReduceOp.MAX)
        for x, top in zip(sums, tops.tolist(), strict=True):
            x.raise_to(top)
            self._reduce(x.sums)
        self._reduce(mean.counts)
        for numbers in of_clients:
            self._reduce(numbers)

    @contextmanager
    def collected(self, store: ClientStore, folder: Path) -> Iterator[dict[str, Tensor | Stream] | None]:
        """Yield the tensors of all clients' records, for a checkpoint in `folder`, on rank 0, and None on other ranks.

        Each rank keeps the records of some clients. When rank 0, in its `with` block, reads a part of a tensor, the
        other ranks send their rows of that part. They enter their own blocks only after rank 0 has left its block. Call
        this inside a block of `together`, which re-raises an error of one rank on all ranks.
        """
        if self.number == 1 or not store.keeps:
            yield None if self.index else store.tensors(folder)
            return
        clients = np.sort(np.concatenate(self.gather(store.seen().tolist()))).astype(np.int64)
        if self.index == 0:
            try:
                yield store.content(clients, partial(self._requested_rows, store))
            finally:
                self.first(None)
            return
        while (request := self.first(None)) is not None:
            try:
                self._rows(store, request["field"], np.array(request["clients"], dtype=np.int64))
            except RankError:
                raise
            except Exception:  # noqa: S112 (rank 0 has it too; there it leaves `together`, which raises it on all)
                continue
        yield None

    def _requested_rows(self, store: ClientStore, field: str, clients: Index) -> Tensor:
        """Request, as rank 0, one field of `clients` from all ranks; return the field, (c, width)."""
        self.first({"field": field, "clients": clients.tolist()})
        return self._rows(store, field, clients)

    def _rows(self, store: ClientStore, field: str, clients: Index) -> Tensor:
        """Return one field of `clients` (c, width): rank 0 receives all rows, each other rank sends its own.

        An error in reading the rows of any rank is raised on all ranks.
        """
        owners = self.owners(clients)
        with self.together():
            own = store.rows(field, clients[owners == self.index]).cpu().contiguous()
        rows = own.new_empty(len(clients), own.shape[1])
        rows[torch.from_numpy(owners == self.index)] = own
        with _connection_errors():
            if self.index and len(own):
                dist.send(own, 0)
            for rank in set(owners.tolist()) - {0} if self.index == 0 else ():
                places = np.flatnonzero(owners == rank)
                dist.recv(part := own.new_empty(len(places), own.shape[1]), rank)
                rows[places] = part
        return rows

    def _broadcast(self, value: Any, source: int) -> Any:
        """Return the `value` of rank `source`, sent as JSON, because reading a pickle can run code."""
        if self.number == 1:
            return value
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with _connection_errors():
            dist.broadcast(size := torch.tensor(len(text)), source)
            dist.broadcast(text := text if self.index == source else text.new_zeros(int(size)), source)
        return json.loads(text.numpy().tobytes())

    def _reduce(self, x: Tensor, how: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum, or another reduction, of `x` over all ranks, in place; GPU tensors go through the host."""
        if self.number > 1:
            on_host = x.cpu()
            with _connection_errors():
                dist.all_reduce(on_host, how)
            if on_host is not x:
                x.copy_(on_host)
        return x


ALONE = Ranks()


def is_launched() -> bool:
    """Tell whether torchrun, or a program that sets the same variables, has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


@contextmanager
def joined(patience: float = PATIENCE) -> Iterator[Ranks]:
    """Connect this process with the other ranks, if torchrun has started it.

    patience: seconds that a rank waits for the others. Raises InputError if torchrun cannot restart these ranks,
    RankError if another rank cannot be reached.
    """
    if not is_launched():
        yield ALONE
        return
    refuse_on_windows("torchrun", "ranks", "run without it")
    end_with(os.getppid())  # torchrun; ranks would outlive a killed one
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        local_ranks.listen_on_loopback()
    with _connection_errors():
        dist.init_process_group(timeout=timedelta(seconds=patience), **_meeting_point(patience))
        folder = os.environ.get(local_ranks.FOLDER)
        impostors = local_ranks.impostors(Path(folder), _attempt(), min(patience, MEETING)) if folder else []
    if impostors:
        raise RankError(
            f"rank {dist.get_rank()}: the process that connected as rank {impostors[0]} is no rank of this run"
        )
    try:
        yield Ranks(dist.get_world_size(), dist.get_rank(), alone=False)
    finally:
        dist.destroy_process_group()


def _meeting_point(patience: float) -> dict[str, Any]:
    """Return the arguments of `init_process_group` for the rendezvous of the ranks.

    With `fedflat run --ranks` the ranks meet in a folder, with torchrun in a store. When torchrun starts the ranks
    again, its store still holds the addresses of those that died (pytorch#135712), so every attempt gets its own
    prefix. Attempts are counted on each machine.
    """
    backend = "gloo"  # for GPUs, too: sums are exchanged once per round, and several ranks can share a GPU
    if folder := os.environ.get(local_ranks.FOLDER):
        number = int(os.environ["WORLD_SIZE"])
        # A file for each attempt: the file of a killed attempt still has the addresses of its ranks.
        store: dist.Store = dist.FileStore(str(Path(folder, f"{local_ranks.STORE}-{_attempt()}")), number)
        return {"backend": backend, "store": store, "rank": int(os.environ["RANK"]), "world_size": number}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {"backend": backend}
    if int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1 and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise InputError("to start ranks on several machines again, torchrun needs the environment variable "
                         "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")  # fmt: skip
    store, rank, number = next(dist.rendezvous("env://", timeout=timedelta(seconds=min(patience, MEETING))))
    store = dist.PrefixStore(f"attempt-{_attempt()}", store)
    return {"backend": backend, "store": store, "rank": rank, "world_size": number}


def _attempt() -> str:
    """Return how often torchrun has restarted the ranks."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Turn an error of the connection between ranks into a RankError of one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0].strip()
        raise RankError(f"rank {os.environ['RANK']} has lost the others: {first}") from error
