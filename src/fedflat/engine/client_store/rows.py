"""Rows of numbers in numbered slots: in memory, or in a slot file that a thread reads and writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ...data.preparation import to_device
from .slot_index import Slots
from .slots import SlotFile

WRITES_BEHIND = 2  # chunks that may wait to be written while the next one trains


class Rows(ABC):
    """Rows of `width` numbers, each in a slot."""

    @abstractmethod
    def read(self, slots: Slots) -> Tensor:
        """Return the rows (c, width) in `slots` (c,), in memory of their own, on the device of the model."""

    @abstractmethod
    def write(self, slots: Slots, rows: Tensor) -> None:
        """Put `rows` (c, width) into `slots` (c,); later reads see them, even before they are on disk."""

    def prefetch(self, slots: Slots) -> None:  # noqa: B027 (rows in memory have nothing to do)
        """Begin to read `slots` (c,), which `read` will be called for next."""

    def settle(self) -> None:  # noqa: B027
        """Wait for all writes. Raises InputError if one failed."""

    def abandon(self) -> None:  # noqa: B027
        """Ignore the writes so far, whether they failed or not."""

    def close(self) -> None:  # noqa: B027
        """Free what the rows occupy outside of memory."""


class MemoryRows(Rows):
    """One matrix on the device of the model, for at most `clients` rows and those of one round."""

    def __init__(self, like: Tensor, width: int, clients: int) -> None:
        self._rows, self._clients = like.new_empty(0, width), clients

    def read(self, slots: Slots) -> Tensor:
        return self._rows[self._at(slots)]

    def write(self, slots: Slots, rows: Tensor) -> None:
        needed = int(slots.max()) + 1
        if needed > len(self._rows):  # doubled, so that growth costs little
            room = self._rows.new_empty(max(needed, min(2 * len(self._rows), self._clients)), self._rows.shape[1])
            room[: len(self._rows)] = self._rows
            self._rows = room
        self._rows[self._at(slots)] = rows

    def _at(self, slots: Slots) -> Tensor:
        return to_device(torch.from_numpy(slots), self._rows.device)


class FileRows(Rows):
    """Rows in a slot file, which one thread reads in advance and writes in the background.

    The thread works in the order of the calls, so a read sees every write before it.
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
        self._ahead = None  # what follows may write where it was read
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
