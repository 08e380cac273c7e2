"""The slot of each client's record, and the rows in the slots: in memory, or in a file that a thread reads and writes.

No slot is written while a client or a checkpoint refers to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError
from ..data.preparation import to_device
from ..data.types import Index
from ..rounds.checkpoint import KEPT
from .slot_file import SlotFile, Slots

Mask = NDArray[np.bool_]
ABSENT = -1  # the slot of a client without a record
WRITES_BEHIND = 2  # most chunks whose records wait to be written while the next chunk is trained


class SlotIndex:
    """The slot of each client. A new record is written to a free slot, which `commit` assigns to the client.

    The client's earlier slot then becomes free. If one of the last `KEPT` checkpoints refers to that slot, it stays
    occupied until the checkpoint is dropped. So no record is lost if a round fails or the process is killed. In return,
    the slots also hold old records, those replaced since the oldest of these checkpoints. The index of a million
    clients takes 4 MB.
    """

    def __init__(self, clients: int) -> None:
        """Make the index of `clients` clients without records."""
        self._slots: Slots = np.full(clients, ABSENT, dtype=np.int32)
        self._free: Slots = np.empty(0, dtype=np.int32)  # ascending: new records are adjacent, near the start
        self.used = 0  # number of slots so far, free ones included
        # For each of the last checkpoints, oldest first, whether it refers to a slot, (slots,).
        self.held: list[Mask] = []
        self._staged: list[tuple[Index, Slots]] = []

    @classmethod
    def restored(cls, slots: Slots, earlier: Sequence[Mask] = ()) -> SlotIndex:
        """Return the index of a checkpoint; its `slots` and those of `earlier` checkpoints are occupied, others free.

        Raises InputError if the index is damaged.
        """
        index = cls(len(slots))
        index._slots = slots.copy()
        index.used = max(int(slots.max(initial=ABSENT)) + 1, *(len(mask) for mask in earlier), 0)
        # A slot belongs to a client, is held for a checkpoint, or is staged; this bounds the number of slots.
        if slots.min(initial=ABSENT) < ABSENT or index.used > (KEPT + 2) * len(slots) + 8:
            raise InputError("the index of client records is damaged: it names a slot that cannot be")
        index.held = [*earlier, index._referred()][-KEPT:]
        if index.held[-1].sum() != (slots >= 0).sum():
            raise InputError("the index of client records is damaged: two clients share a slot")
        index._free = np.flatnonzero(~index._is_held(np.arange(index.used))).astype(np.int32)
        return index

    @property
    def slots(self) -> Slots:
        """The slot of every client, (clients,); a copy."""
        return self._slots.copy()

    def of(self, clients: Index) -> Slots:
        """Return the slots (c,) of `clients`, `ABSENT` for a client without a record."""
        return self._slots[clients]

    def seen(self) -> Index:
        """Return all clients that have a record, in the order of their slots."""
        clients = np.flatnonzero(self._slots >= 0)
        return clients[np.argsort(self._slots[clients])]

    def stage(self, clients: Index) -> Slots:
        """Return free slots (c,) for new records of `clients`; until `commit`, the clients keep their earlier slots."""
        fresh, self._free = self._free[: len(clients)], self._free[len(clients) :]
        missing = len(clients) - len(fresh)
        more = np.arange(self.used, self.used + missing, dtype=np.int32)
        self.used += missing
        taken = np.concatenate([fresh, more])
        self._staged.append((clients, taken))
        return taken

    def commit(self) -> None:
        """Assign the staged slots to their clients; free the clients' earlier slots unless a checkpoint holds them."""
        if self._staged:
            clients, fresh = (np.concatenate(parts) for parts in zip(*self._staged, strict=True))
            old = self._slots[clients]
            self._slots[clients] = fresh
            self._staged = []
            self._release(old[~self._is_held(old)])

    def discard(self) -> None:
        """Free the staged slots; the clients keep their earlier slots."""
        staged, self._staged = self._staged, []
        for _, slots in staged:
            self._release(slots)

    def hold(self) -> None:
        """Hold all clients' slots for a new checkpoint.

        If more than `KEPT` checkpoints hold slots, the oldest is dropped, and the slots that only it held become free.
        """
        self.held.append(self._referred())
        given_up, self.held = self.held[:-KEPT], self.held[-KEPT:]
        for mask in given_up:
            slots = np.flatnonzero(mask)
            self._release(slots[~self._is_held(slots)])

    def _referred(self) -> Mask:
        referred = np.zeros(self.used, dtype=bool)
        referred[self._slots[self._slots >= 0]] = True
        return referred

    def _is_held(self, slots: Index | Slots) -> Mask:
        """Return for each slot whether a checkpoint needs it; True for `ABSENT`, which cannot be freed."""
        held = slots < 0
        for mask in self.held:
            known = (slots >= 0) & (slots < len(mask))
            held[known] |= mask[slots[known]]
        return held

    def _release(self, slots: Index | Slots) -> None:
        self._free = np.sort(np.concatenate([self._free, slots.astype(np.int32)]))


class Rows(ABC):
    """Rows of `width` numbers, one in each slot."""

    @abstractmethod
    def read(self, slots: Slots) -> Tensor:
        """Return the rows (c, width) in `slots` (c,), in new memory on the device of the model."""

    @abstractmethod
    def write(self, slots: Slots, rows: Tensor) -> None:
        """Write `rows` (c, width) into `slots` (c,); later reads return them, even before they are on disk."""

    def prefetch(self, slots: Slots) -> None:  # noqa: B027 (rows in memory have nothing to do)
        """Begin to read `slots` (c,) for the next `read`."""

    def settle(self) -> None:  # noqa: B027
        """Wait for all writes. Raises InputError if one failed."""

    def abandon(self) -> None:  # noqa: B027
        """Ignore the writes so far, whether they failed or not."""

    def close(self) -> None:  # noqa: B027
        """Close the file and end the thread, if the rows are in a file."""


class MemoryRows(Rows):
    """Rows in one matrix on the device of the model: a row for each client, and the rows that a round stages."""

    def __init__(self, like: Tensor, width: int, clients: int) -> None:
        self._rows, self._clients = like.new_empty(0, width), clients

    def read(self, slots: Slots) -> Tensor:
        return self._rows[self._at(slots)]

    def write(self, slots: Slots, rows: Tensor) -> None:
        needed = int(slots.max()) + 1
        if needed > len(self._rows):  # doubled, so that the cost of growth is amortised
            room = self._rows.new_empty(max(needed, min(2 * len(self._rows), self._clients)), self._rows.shape[1])
            room[: len(self._rows)] = self._rows
            self._rows = room
        self._rows[self._at(slots)] = rows

    def _at(self, slots: Slots) -> Tensor:
        return to_device(torch.from_numpy(slots), self._rows.device)


class FileRows(Rows):
    """Rows in a slot file, which one thread reads in advance and writes in the background.

    The thread works in the order of the calls, so a read sees all earlier writes.
    """

    def __init__(self, file: SlotFile, like: Tensor, width: int) -> None:
        self.file = file
        self._like, self._width = like, width
        self._thread = ThreadPoolExecutor(1, "client-records")
        self._writes: deque[Future[None]] = deque()
        self._ahead: tuple[Slots, Future[Tensor]] | None = None

    def prefetch(self, slots: Slots) -> None:
        self._ahead = slots, self._begin_reading(slots)

    def read(self, slots: Slots) -> Tensor:
        ahead, self._ahead = self._ahead, None
        reading = ahead[1] if ahead and np.array_equal(ahead[0], slots) else self._begin_reading(slots)
        return to_device(reading.result(), self._like.device)

    def write(self, slots: Slots, rows: Tensor) -> None:
        while len(self._writes) >= WRITES_BEHIND:
            self._writes.popleft().result()
        content = rows.cpu().contiguous().view(torch.uint8).numpy()
        self._writes.append(self._thread.submit(self.file.write, slots, content))

    def settle(self) -> None:
        self._ahead = None  # the next writes may go to slots that were read ahead
        while self._writes:
            self._writes.popleft().result()

    def abandon(self) -> None:
        self._writes.clear()

    def close(self) -> None:
        self._thread.shutdown()
        self.file.close()

    def _begin_reading(self, slots: Slots) -> Future[Tensor]:
        # Memory that torch aligned: vector kernels round differently on odd addresses.
        rows = torch.empty(len(slots), self._width, dtype=self._like.dtype)

        def read() -> Tensor:
            self.file.read(slots, rows.view(torch.uint8).numpy())
            return rows

        return self._thread.submit(read)
