"""The slot file: what is written is read, for the checkpoint that it serves, by one writer."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedflat.core.errors import InputError
from fedflat.engine.store import slots as module
from fedflat.engine.store.slots import NAME, NONE, START, SlotFile
from support.files import refused

BYTES = 12


def at(*slots: int) -> np.ndarray:
    return np.array(slots, dtype=np.int32)


def content(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, BYTES), dtype=np.uint8)


def read(file: SlotFile, slots: np.ndarray) -> np.ndarray:
    found = np.empty((len(slots), BYTES), np.uint8)
    file.read(slots, found)
    return found


def served(folder: Path, rows: int = 3) -> bytes:
    """A file with so many rows, left by a run that wrote one checkpoint; the checkpoint's key."""
    file = SlotFile.created(folder, BYTES)
    file.write(np.arange(rows, dtype=np.int32), content(rows))
    key = file.announce()
    file.settle()
    file.close()
    return key


@pytest.mark.parametrize("make", [lambda _: SlotFile.anonymous(BYTES), lambda path: SlotFile.created(path, BYTES)])
def test_every_slot_keeps_its_own(tmp_path: Path, make) -> None:
    """In any order, with runs that lie side by side in the file, in the rows, in both or in neither."""
    file, written = make(tmp_path), content(40)
    order = np.random.default_rng(1).permutation(40).astype(np.int32)
    order[:10] = np.sort(order[:10])
    order[10:20] = order[10:20][::-1]
    file.write(order, written)
    assert np.array_equal(read(file, order), written)
    assert np.array_equal(read(file, np.arange(40, dtype=np.int32)), written[np.argsort(order)])
    assert np.array_equal(read(file, order[7:3:-1]), written[7:3:-1])


def test_moves_that_stop_early_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system moves at most 2 GiB at once, here five bytes."""
    for name in ("preadv", "pwritev"):
        whole = getattr(os, name)
        monkeypatch.setattr(os, name, lambda handle, parts, at, whole=whole: whole(handle, [parts[0][:5]], at))
    file = SlotFile.created(tmp_path, BYTES)
    file.write(at(2, 3, 0), content(3))
    assert np.array_equal(read(file, at(0, 2, 3)), content(3)[[2, 0, 1]])


def test_a_nameless_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    file = SlotFile.anonymous(BYTES)
    file.write(at(0), content(1))
    assert not list(tmp_path.iterdir())
    file.close()
    file.close()


def test_it_serves_the_last_checkpoint_and_meanwhile_the_next(tmp_path: Path) -> None:
    first = served(tmp_path)
    file = SlotFile.claimed(tmp_path, BYTES, first)
    following = file.announce()
    for key in (first, following):
        SlotFile.opened(tmp_path, BYTES, key, 3)
    reader = SlotFile.opened(tmp_path, BYTES, first, 3)
    assert np.array_equal(read(reader, at(0, 2)), content(3)[[0, 2]])
    file.settle()
    SlotFile.opened(tmp_path, BYTES, following, 3)
    with refused(NAME, "does not fit the checkpoint"):
        SlotFile.opened(tmp_path, BYTES, first, 3)
    with refused(NAME, "has gone on since"):
        read(reader, at(0))


def test_who_goes_on_from_a_checkpoint_ends_the_other(tmp_path: Path) -> None:
    """A crash before a checkpoint is confirmed leaves two; whoever goes on from one of them breaks the other."""
    first = served(tmp_path)
    file = SlotFile.claimed(tmp_path, BYTES, first)
    following = file.announce()
    file.close()
    SlotFile.claimed(tmp_path, BYTES, first)
    with refused("does not fit"):
        SlotFile.opened(tmp_path, BYTES, following, 3)


def test_there_is_one_writer(tmp_path: Path) -> None:
    key = served(tmp_path)
    file = SlotFile.claimed(tmp_path, BYTES, key)
    for make in (lambda: SlotFile.claimed(tmp_path, BYTES, key), lambda: SlotFile.created(tmp_path, BYTES)):
        with refused(NAME, "is being written by another simulation"):
            make()
    file.close()
    SlotFile.claimed(tmp_path, BYTES, key)


def test_a_new_file_replaces_none_that_a_checkpoint_needs(tmp_path: Path) -> None:
    file = SlotFile.created(tmp_path, BYTES)
    file.write(at(5), content(1))
    file.announce()  # its checkpoint was never finished
    file.close()
    served(tmp_path)
    with refused(NAME, "belongs to a checkpoint"):
        SlotFile.created(tmp_path, BYTES)


def test_another_file_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    key, other = served(tmp_path / "a"), served(tmp_path / "b")
    path = tmp_path / "a" / NAME
    for wrong in (other, NONE, bytes([0] * 15 + [1])):
        with refused(str(path), "does not fit the checkpoint"):
            SlotFile.opened(path.parent, BYTES, wrong, 3)
    with refused(str(path), "does not fit the checkpoint"):
        SlotFile.opened(path.parent, BYTES + 1, key, 3)
    path.write_bytes(b"something else" * 1000)
    with refused(str(path), "does not fit the checkpoint"):
        SlotFile.opened(path.parent, BYTES, key, 3)


@pytest.mark.parametrize("size", [0, 20, START, START + 3 * BYTES - 1])
def test_a_shortened_file_is_refused(tmp_path: Path, size: int) -> None:
    key = served(tmp_path)
    os.truncate(tmp_path / NAME, size)
    with refused(NAME):
        SlotFile.opened(tmp_path, BYTES, key, 3)


def test_one_that_is_shortened_later_is_noticed(tmp_path: Path) -> None:
    file = SlotFile.opened(tmp_path, BYTES, served(tmp_path), 3)
    os.truncate(tmp_path / NAME, START + 2 * BYTES)
    with refused(NAME, "cannot be read: it ends too early"):
        read(file, at(2))


def test_a_folder_that_is_missing_or_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, reason in ((tmp_path / "none", "No such file"), (tmp_path / "file", "Not a directory")):
        with refused(str(folder), reason):
            SlotFile.created(folder, BYTES)
        with refused(str(folder), reason):
            SlotFile.opened(folder, BYTES, bytes(16), 0)


def test_errors_of_the_system_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_) -> int:
        raise OSError(28, "No space left on device")

    file = SlotFile.created(tmp_path, BYTES)
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(InputError, match=rf"client records: .*{NAME} cannot be written: No space left on device"):
        file.write(at(0), content(1))
