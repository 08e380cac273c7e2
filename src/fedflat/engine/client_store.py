"""The store of clients' records between their rounds: in memory or, if the records may not fit, in a slot file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Method
from ..core.records import Record
from ..core.user_code import check_record
from ..data.preparation import to_device
from ..data.types import Index
from ..rounds.checkpoint import KEPT, DamagedError, Stream, rows_at_once
from .client_rows import ABSENT, FileRows, MemoryRows, Rows, SlotIndex, Slots
from .slot_file import Digests, SlotFile

BUDGET = 2048 * 10**6  # bytes; two vectors of LeNet for 100 clients take 0.64 GB, which leaves them in memory
CHUNKS = 5  # chunks in memory if records are in a file: one read ahead, one training, two to be written, one copied
# Names of tensors in a checkpoint, besides those of the fields: the slot of every client (clients,) int32. If the
# records are in a slot file, also the key that the file must have, the digests (clients with a record,) of the records
# in the order of the clients, and the slots that earlier checkpoints refer to, one bit for each slot.
SLOTS, KEY, DIGESTS, HELD = "slots", "slot-file", "digests", "held"


def check_records(tensors: Mapping[str, Tensor | Stream], folder: Path) -> None:
    """Raise DamagedError if a checkpoint in `folder` refers to records that the slot file there does not have.

    tensors: the content of the checkpoint, from `ClientStore.tensors`.
    """
    key, slots = tensors.get(KEY), tensors.get(SLOTS)
    if isinstance(key, Tensor) and isinstance(slots, Tensor):
        seen = slots[slots >= 0].numpy()
        known = _digests_in(tensors, len(seen))
        SlotFile.opened(folder.resolve(), SlotFile.slot_bytes(folder), key.numpy().tobytes(), seen, known).close()


def _digests_in(tensors: Mapping[str, Tensor | Stream], records: int) -> Digests:
    """Return a checkpoint's digests (records,) of the records in its slot file."""
    digests = tensors.get(DIGESTS)
    if not isinstance(digests, Tensor) or digests.shape != (records,):
        raise DamagedError(f"clients.{DIGESTS} are not those of {records} records")
    checked: Digests = digests.numpy()
    return checked


class ClientStore:
    """The records of all clients between rounds; a client without a record takes only the space of an index entry.

    A round reads records with `get` and writes new ones with `stage`. `commit` replaces the clients' records by the
    staged records; `discard` drops the staged records.
    """

    def __init__(
        self,
        method: Method,
        clients: int,
        like: Tensor,
        budget: int = BUDGET,
        folder: str | Path | None = None,
        owned: Callable[[Index], NDArray[np.bool_]] = lambda clients: np.ones(len(clients), dtype=bool),
    ) -> None:
        """Make a store without records; `like` (d,) gives model size, dtype and device.

        Records that may take more than `budget` bytes of memory are kept in a slot file in `folder`, or, without a
        folder, in a nameless temporary file. `owned` tells which of the clients (c,) belong to this store; the store
        loads no records of other clients from a checkpoint.
        """
        self._passing = method.client.marked("per_round")
        widths = method.client.widths(like.shape[-1], method)
        self._method, self._clients, self._like = method, clients, like.new_empty(0)
        self._widths = {name: width for name, width in widths.items() if name not in self._passing}
        self._width = sum(self._widths.values())
        self._slot_bytes = self._width * like.itemsize
        # Decided once, as if all clients had records: so no record moves during a run, and no estimate can be wrong; a
        # file takes about as much time as memory. The factor is 2 because the matrix is copied when it grows.
        self._fits = 2 * clients * self._slot_bytes <= budget
        self._folder = None if folder is None else Path(folder).resolve()
        self._index, self._owned = SlotIndex(clients), owned
        self._rows: Rows | None = None  # made when the first record is staged
        self._announced = False  # a checkpoint that relies on the slot file is being written

    def most_bytes(self, at_once: int) -> int:
        """Return the largest number of bytes of memory for records if `at_once` clients are trained at once."""
        kept = 2 * self._clients if self._fits else CHUNKS * at_once
        return kept * self._slot_bytes + self._index.slots.nbytes + (0 if self._fits else 8 * self._clients)

    @property
    def keeps(self) -> bool:
        """Whether clients keep anything between their rounds."""
        return self._width > 0

    def seen(self) -> Index:
        """Return the clients of this store that have a record."""
        clients = self._index.seen()
        return clients[self._owned(clients)]

    def rows(self, name: str, clients: Index) -> Tensor:
        """Return one field (c, width) of the records of `clients` (c,); each client must have a record."""
        if self._rows is None:
            return self._like.new_empty(0, self._widths[name])
        return self._fields(self._rows.read(self._index.of(clients)))[name]

    def content(self, clients: Index, rows: Callable[[str, Index], Tensor]) -> dict[str, Tensor | Stream]:
        """Return the tensors of a checkpoint that contains the records of `clients` (c,), without a slot file.

        The tensors are the fields of the records, (c, width), and an index with the row of every client of the run,
        (clients,). Each of `clients` must have a record. rows: returns one field of given clients, (n, width).
        """
        places = np.full(self._clients, ABSENT, dtype=np.int32)
        places[clients] = np.arange(len(clients))

        def stream(name: str, width: int) -> Stream:
            shape = len(clients), width
            return Stream(shape, self._like.dtype, lambda start, end: rows(name, clients[start:end]))

        streams = {name: stream(name, width) for name, width in self._widths.items()}
        return {SLOTS: torch.from_numpy(places), **streams}

    def get(self, clients: Index, down: Record) -> Record:
        """Return the records (c, width) of `clients`; a client's first record is made from `down` (c, d)."""
        slots = self._index.of(clients)
        known = np.flatnonzero(slots >= 0)
        if self._rows is not None and len(known) == len(clients) and not self._passing:
            return self._method.client(**self._fields(self._rows.read(slots)))
        first: Record = check_record(self._method, "init_client", self._method.init_client(down), self._method.client)
        if self._rows is None or not len(known):
            return first
        kept = self._fields(self._rows.read(slots[known]))
        if len(known) < len(clients):
            at = to_device(torch.from_numpy(known), self._like.device)
            kept = {name: getattr(first, name).index_copy(0, at, rows) for name, rows in kept.items()}
        return type(first)(**{**first.tensors(), **kept})

    def prefetch(self, clients: Index) -> None:
        """Begin to read the records of `clients` for the next `get`, while other clients train."""
        slots = self._index.of(clients)
        if self._rows is not None and (slots >= 0).any():
            self._rows.prefetch(slots[slots >= 0])

    def stage(self, clients: Index, records: Record) -> None:
        """Write the new records (c, width) of `clients`; until `commit`, `get` returns the old records.

        Raises InputError, here or at `commit`, if the new records cannot be written.
        """
        if self._width:
            rows = torch.cat([getattr(records, name) for name in self._widths], dim=1).to(self._like)
            self._own().write(self._index.stage(clients), rows)

    def commit(self) -> None:
        """Replace clients' records by the staged ones. Raises InputError, and changes nothing, if a write failed."""
        if self._rows is not None:
            self._rows.settle()
        self._index.commit()

    def discard(self) -> None:
        """Drop staged records."""
        if self._rows is not None:
            self._rows.abandon()
        self._index.discard()

    def tensors(self, beside: Path | None = None) -> dict[str, Tensor | Stream]:
        """Return the tensors to write to a checkpoint in the folder `beside`.

        The tensors hold all records or, if the slot file lies in that folder, only the records' slots and digests.
        Those that are streams can be read until the next commit. Call `saved` once the checkpoint is written.
        """
        file = self._file
        self._announced = file is not None and file.writable and beside is not None and file.folder == beside.resolve()
        if file is None or not self._announced:
            content = self.content(clients := self.seen(), self.rows)
            if file is not None:
                return content
            return {name: x.read(0, len(clients)) if isinstance(x, Stream) else x for name, x in content.items()}
        slots = self._index.slots
        written = {
            SLOTS: slots,
            KEY: np.frombuffer(file.announce(), np.uint8).copy(),
            DIGESTS: file.digests(slots[slots >= 0]),
            **{f"{HELD}.{i}": np.packbits(mask) for i, mask in enumerate(self._index.held[-(KEPT - 1) :])},
        }
        return {name: torch.from_numpy(x) for name, x in written.items()}

    def saved(self) -> None:
        """Release the slots of removed checkpoints; call this after the checkpoint with `tensors` has been written."""
        if self._file is not None and self._announced:
            self._file.settle()
            self._index.hold()
            self._announced = False

    def restore(self, tensors: Mapping[str, Tensor | Stream], folder: Path | None = None) -> None:
        """Restore the records from the `tensors` of a checkpoint in `folder`.

        A slot file in `folder` is not written to before the next `stage`. Raises InputError if the checkpoint is
        damaged, or if the slot file belongs to another run or no longer has the records of the checkpoint.
        """
        index = self._index_in(tensors)
        rows: Rows | None = None
        if isinstance(key := tensors.get(KEY), Tensor):
            slots, place = index.slots[index.slots >= 0], (folder or Path()).resolve()
            known = _digests_in(tensors, len(slots))
            file = SlotFile.opened(place, self._slot_bytes, key.numpy().tobytes(), slots, known)
            self.close()
            rows = FileRows(file, self._like, self._width)
        elif index.used:
            read = self._reader(tensors, index.used)
            self.close()
            index, rows = self._copied(index, read)
        self._index, self._rows = index, rows

    def close(self) -> None:
        """Close the slot file and release its lock; afterwards only `restore` works."""
        if self._rows is not None:
            self._rows.close()

    @property
    def _file(self) -> SlotFile | None:
        return self._rows.file if isinstance(self._rows, FileRows) else None

    def _fields(self, rows: Tensor) -> dict[str, Tensor]:
        """Split rows (c, width) into fields, each in new memory, because rounding depends on the alignment."""
        parts = torch.split(rows, list(self._widths.values()), dim=1)
        return {name: part.contiguous() for name, part in zip(self._widths, parts, strict=True)}

    def _own(self) -> Rows:
        """Return writable rows: the current rows, new rows, or a copy of the rows of another run."""
        rows = before = self._rows or self._new()
        if isinstance(before, FileRows) and not before.file.writable:
            if self._folder is not None and before.file.folder == self._folder:
                rows = FileRows(SlotFile.claimed(before.file), self._like, self._width)
            else:  # the slot file of another run: the records are copied
                self._index, rows = self._copied(self._index, before.read)
            before.close()
        self._rows = rows
        return rows

    def _new(self) -> Rows:
        if self._fits:
            return MemoryRows(self._like, self._width, self._clients)
        size = self._slot_bytes
        file = SlotFile.anonymous(size) if self._folder is None else SlotFile.created(self._folder, size)
        return FileRows(file, self._like, self._width)

    def _copied(self, index: SlotIndex, read: Callable[[Slots], Tensor]) -> tuple[SlotIndex, Rows]:
        """Copy the rows of this store's clients from slots in `index` by `read`; return the new index and rows."""
        copy, rows = SlotIndex(self._clients), self._new()
        clients, step = index.seen(), rows_at_once(self._slot_bytes)
        clients = clients[self._owned(clients)]
        try:
            for start in range(0, len(clients), step):
                part = clients[start : start + step]
                rows.write(copy.stage(part), read(index.of(part)).to(self._like))
            rows.settle()
        except BaseException:
            rows.close()
            raise
        copy.commit()
        return copy, rows

    def _index_in(self, tensors: Mapping[str, Tensor | Stream]) -> SlotIndex:
        slots = tensors.get(SLOTS)
        if not isinstance(slots, Tensor) or slots.shape != (self._clients,) or slots.dtype != torch.int32:
            raise InputError(f"clients.{SLOTS} are not those of {self._clients} clients")
        earlier = [tensors[name] for name in sorted(tensors) if name.startswith(f"{HELD}.")]
        masks = [np.unpackbits(x.numpy()).astype(bool) for x in earlier if isinstance(x, Tensor)]
        return SlotIndex.restored(slots.numpy(), masks)

    def _reader(self, tensors: Mapping[str, Tensor | Stream], used: int) -> Callable[[Slots], Tensor]:
        """Return a function that reads records (c, width) with all fields from a checkpoint, for ascending slots."""
        fields = [Stream.of(tensors[name]) for name in self._widths]
        if any(x.shape != (used, width) for x, width in zip(fields, self._widths.values(), strict=True)):
            raise InputError("clients' records do not fit the method or the model")

        def read(slots: Slots) -> Tensor:
            first, end = int(slots[0]), int(slots[-1]) + 1
            return torch.cat([x.read(first, end)[slots - first] for x in fields], dim=1)

        return read
