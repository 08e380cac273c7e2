"""Which slot holds which client's record. No slot is written while a client or a checkpoint still refers to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from ...data.types import Index
from ...rounds.checkpoint import KEPT

Slots = NDArray[np.int32]
Mask = NDArray[np.bool_]
ABSENT = -1  # the slot of a client never seen


class SlotIndex:
    """Client -> slot, copied on write: a record goes into a free slot, and `commit` makes it the client's.

    The slot that the client had before is free after that, or, where one of the last `KEPT` checkpoints refers to it,
    as soon as that checkpoint is given up. So no record is lost if a round fails or the process is killed. This takes
    space for the records that are written during `KEPT` checkpoints. The index of a million clients takes 4 MB.
    """

    def __init__(self, clients: int) -> None:
        """None of `clients` clients has a record."""
        self._slots: Slots = np.full(clients, ABSENT, dtype=np.int32)
        self._free: Slots = np.empty(0, dtype=np.int32)  # rising, so that new records lie side by side, at the front
        self.used = 0  # how many slots there are, free ones included; those beyond have never been written
        # For each of the last checkpoints, oldest first, whether it refers to a slot, (slots,).
        self.held: list[Mask] = []
        self._staged: list[tuple[Index, Slots]] = []

    @classmethod
    def restored(cls, slots: Slots, earlier: Sequence[Mask] = ()) -> SlotIndex:
        """Return the index of a checkpoint, whose slots are held, as are those of `earlier` ones; all others are free.

        Raises InputError if it is damaged.
        """
        index = cls(len(slots))
        index._slots = slots.copy()
        index.used = max(int(slots.max(initial=ABSENT)) + 1, *(len(mask) for mask in earlier), 0)
        # A slot is a client's, or held for a checkpoint, or staged: there are never more of them.
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
        """Return the slots (c,) of `clients`, `ABSENT` where a client has never been seen."""
        return self._slots[clients]

    def seen(self) -> Index:
        """All clients that have a record, in the order of their slots."""
        clients = np.flatnonzero(self._slots >= 0)
        return clients[np.argsort(self._slots[clients])]

    def stage(self, clients: Index) -> Slots:
        """Free slots (c,) for new records of `clients`, who keep their old ones until `commit`."""
        fresh, self._free = self._free[: len(clients)], self._free[len(clients) :]
        missing = len(clients) - len(fresh)
        more = np.arange(self.used, self.used + missing, dtype=np.int32)
        self.used += missing
        taken = np.concatenate([fresh, more])
        self._staged.append((clients, taken))
        return taken

    def commit(self) -> None:
        """Make the staged slots the clients' slots."""
        if self._staged:
            clients, fresh = (np.concatenate(parts) for parts in zip(*self._staged, strict=True))
            old = self._slots[clients]
            self._slots[clients] = fresh
            self._staged = []
            self._release(old[~self._is_held(old)])

    def discard(self) -> None:
        """Free the staged slots; the clients keep their old ones."""
        staged, self._staged = self._staged, []
        for _, slots in staged:
            self._release(slots)

    def hold(self) -> None:
        """Hold all clients' slots for a new checkpoint, and free those that only the oldest one referred to."""
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
        """Whether a slot may not be freed; that of a client never seen is none."""
        held = slots < 0
        for mask in self.held:
            known = (slots >= 0) & (slots < len(mask))
            held[known] |= mask[slots[known]]
        return held

    def _release(self, slots: Index | Slots) -> None:
        self._free = np.sort(np.concatenate([self._free, slots.astype(np.int32)]))
