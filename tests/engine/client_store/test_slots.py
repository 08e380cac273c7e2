"""The slot file: what is written is read, for the checkpoint that it serves, by one writer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from fedflat.core.errors import InputError
from fedflat.engine import slot_file as module
from fedflat.engine.slot_file import NAME, NONE, START, SlotFile, digests_of
from fedflat.rounds.checkpoint import KEPT, DamagedError
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


def opened(folder: Path, key: bytes, rows: int = 3, size: int = BYTES) -> SlotFile:
    """The file of `served`, as its checkpoint knows it."""
    return SlotFile.opened(folder, size, key, np.arange(rows, dtype=np.int32), digests_of(content(rows)))


def claimed(folder: Path, key: bytes) -> SlotFile:
    return SlotFile.claimed(opened(folder, key))


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


def test_it_serves_the_last_checkpoints_and_meanwhile_the_next(tmp_path: Path) -> None:
    keys = [served(tmp_path)]
    file, reader = claimed(tmp_path, keys[0]), opened(tmp_path, keys[0])
    for _ in range(KEPT):
        keys.append(file.announce())
        for key in keys[-KEPT - 1 :]:
            opened(tmp_path, key)
        assert np.array_equal(read(reader, at(0, 2)), content(3)[[0, 2]])
        file.settle()
    for key in keys[1:]:
        opened(tmp_path, key)
    with refused(NAME, "does not fit the checkpoint"):
        opened(tmp_path, keys[0])
    with refused(NAME, "was written since"):
        read(reader, at(0))


def test_going_back_keeps_what_was_before(tmp_path: Path) -> None:
    """From the second of three checkpoints on, the third is given up, and the first is still there."""
    keys = [served(tmp_path)]
    file = claimed(tmp_path, keys[0])
    for _ in range(2):
        keys.append(file.announce())
        file.settle()
    file.close()
    claimed(tmp_path, keys[1]).close()
    opened(tmp_path, keys[0])
    opened(tmp_path, keys[1])
    with refused("does not fit the checkpoint"):
        opened(tmp_path, keys[2])


def test_a_bit_that_flips_is_noticed_when_it_is_opened_and_when_it_is_read(tmp_path: Path) -> None:
    key = served(tmp_path)
    file, path = opened(tmp_path, key), tmp_path / NAME
    rng, whole = np.random.default_rng(0), path.read_bytes()
    for _ in range(200):
        place = START + int(rng.integers(3 * BYTES))
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match="has another digest"):
            opened(tmp_path, key)
        with pytest.raises(DamagedError, match="has another digest"):
            read(file, at(0, 1, 2))
    path.write_bytes(whole)
    read(file, at(0, 1, 2))


def test_a_write_that_the_disk_has_lost_is_noticed(tmp_path: Path) -> None:
    """What is there is a whole record, but an older one."""
    file, older = SlotFile.created(tmp_path, BYTES), content(1, seed=1)
    file.write(at(0), older)
    file.write(at(0), content(1, seed=2))
    with (tmp_path / NAME).open("r+b") as disk:
        disk.seek(START)
        disk.write(older.tobytes())
    with pytest.raises(DamagedError, match="slot 0 has another digest"):
        read(file, at(0))


def test_others_cannot_read_it(tmp_path: Path) -> None:
    served(tmp_path)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_a_file_of_somebody_else_is_not_written(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("mine")
    with refused(NAME, "is no file of client records"):
        SlotFile.created(tmp_path, BYTES)
    assert (tmp_path / NAME).read_text() == "mine"
    (tmp_path / NAME).rename(tmp_path / "precious")
    (tmp_path / NAME).symlink_to(tmp_path / "precious")
    with refused(NAME, "cannot be opened"):
        SlotFile.created(tmp_path, BYTES)


def test_who_goes_on_from_a_checkpoint_ends_the_other(tmp_path: Path) -> None:
    """A crash before a checkpoint is confirmed leaves two; whoever goes on from one of them breaks the other."""
    first = served(tmp_path)
    file = claimed(tmp_path, first)
    following = file.announce()
    file.close()
    claimed(tmp_path, first)
    with refused("does not fit"):
        opened(tmp_path, following)


def test_there_is_one_writer(tmp_path: Path) -> None:
    key = served(tmp_path)
    file = claimed(tmp_path, key)
    for make in (lambda: claimed(tmp_path, key), lambda: SlotFile.created(tmp_path, BYTES)):
        with refused(NAME, "is being written by another simulation"):
            make()
    file.close()
    claimed(tmp_path, key)


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
            opened(path.parent, wrong)
    with refused(str(path), "does not fit the checkpoint"):
        opened(path.parent, key, size=BYTES + 1)
    path.write_bytes(b"something else" * 1000)
    with refused(str(path), "does not fit the checkpoint"):
        opened(path.parent, key)


@pytest.mark.parametrize("size", [0, 20, START, START + 3 * BYTES - 1])
def test_a_shortened_file_is_refused(tmp_path: Path, size: int) -> None:
    key = served(tmp_path)
    os.truncate(tmp_path / NAME, size)
    with refused(NAME):
        opened(tmp_path, key)


def test_slots_larger_than_the_file_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """What a flipped bit makes of the size of a slot, of which `verify` knows only what the file says."""
    key = served(tmp_path)
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(16)
        file.write((BYTES + 2**60).to_bytes(8, "little"))
    with refused(NAME, "it ends before its last slot"):
        opened(tmp_path, key, size=SlotFile.slot_bytes(tmp_path))


def test_one_that_is_shortened_later_is_noticed(tmp_path: Path) -> None:
    file = opened(tmp_path, served(tmp_path))
    os.truncate(tmp_path / NAME, START + 2 * BYTES)
    with refused(NAME, "cannot be read: it ends too early"):
        read(file, at(2))


def test_a_folder_that_is_missing_or_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, reason in ((tmp_path / "none", "No such file"), (tmp_path / "file", "Not a directory")):
        with refused(str(folder), reason):
            SlotFile.created(folder, BYTES)
        with refused(str(folder), reason):
            opened(folder, bytes(16))


def test_errors_of_the_system_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_) -> int:
        raise OSError(28, "No space left on device")

    file = SlotFile.created(tmp_path, BYTES)
    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(InputError, match=rf"client records: .*{NAME} cannot be written: No space left on device"):
        file.write(at(0), content(1))
