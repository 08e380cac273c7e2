"""Where clients' records stay between their rounds: one slot for each client seen so far."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.method import Method
from ..core.records import Record


class ClientStore:
    """The kept records of all clients, in memory; clients never seen use no space but their index entry."""

    def __init__(self, method: Method, clients: int, like: Tensor) -> None:
        """`like` (d,) gives model size, dtype and device."""
        passing = method.client.marked("per_round")
        widths = method.client.widths(like.shape[-1], method)
        self._method = method
        self._slots = np.full(clients, -1, dtype=np.int32)
        self._used = 0
        self._rows = {name: like.new_empty(0, width) for name, width in widths.items() if name not in passing}

    def get(self, clients: np.ndarray, down: Record) -> Record:
        """The records (c, width) of `clients`; one never seen gets its first record made from `down` (c, d)."""
        first: Record = self._method.init_client(down)
        slots = self._slots[clients]
        if not self._rows or (slots < 0).all():
            return first
        known = torch.from_numpy(slots >= 0).to(next(iter(self._rows.values())).device)[:, None]
        where = torch.from_numpy(np.maximum(slots, 0)).to(known.device)
        kept = {name: torch.where(known, rows[where], getattr(first, name)) for name, rows in self._rows.items()}
        return type(first)(**{**first.tensors(), **kept})

    def put(self, clients: np.ndarray, records: Record) -> None:
        """Keep the records (c, width) of `clients`."""
        if not self._rows:
            return
        new = clients[self._slots[clients] < 0]
        self._slots[new] = np.arange(self._used, self._used + len(new), dtype=np.int32)
        self._used += len(new)
        self._grow()
        slots = torch.from_numpy(self._slots[clients])
        for name, rows in self._rows.items():
            rows[slots.to(rows.device)] = getattr(records, name)

    def tensors(self) -> dict[str, Tensor]:
        """Everything kept, for a checkpoint."""
        return {
            "slots": torch.from_numpy(self._slots),
            **{name: rows[: self._used] for name, rows in self._rows.items()},
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors()` gave."""
        self._slots = tensors["slots"].numpy().copy()
        self._used = int((self._slots >= 0).sum())
        self._rows = {name: tensors[name].to(rows) for name, rows in self._rows.items()}

    def _grow(self) -> None:
        """Room for all used slots, at least doubled so that growth costs little."""
        for name, rows in self._rows.items():
            if len(rows) < self._used:
                room = rows.new_empty(max(self._used, 2 * len(rows)), rows.shape[1])
                room[: len(rows)] = rows
                self._rows[name] = room
