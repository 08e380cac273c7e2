from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.data import cache as module
from fedflat.data.cache import Entry, Writer, cache_folder, entry, key
from fedflat.data.readers.idx import Idx
from support.files import idx, random_labels, random_pictures, refused, write_files
from support.memory import peak_of_a_load


def mnist(folder: Path, n: int = 20, seed: int = 0) -> Path:
    """A small MNIST in idx files."""
    files = {}
    for part, size in (("train", n), ("t10k", 5)):
        files[f"mnist/{part}-images-idx3-ubyte"] = idx(random_pictures(size, seed=seed)[:, 0])
        files[f"mnist/{part}-labels-idx1-ubyte"] = idx(random_labels(size, seed=seed))
    write_files(folder, files)
    return folder


def load(folder: Path) -> ff.FederatedData:
    return ff.data.load("mnist", clients=2, data_dir=str(folder), partial=True)


def entries(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if not path.name.startswith(".")]


def left_over(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.name.startswith(".tmp-")]


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Filled with the folder at every reading of files."""
    seen, original = [], Idx.parts

    def parts(self: Idx, folder: Path, shape: Any) -> Any:
        seen.append(folder)
        return original(self, folder, shape)

    monkeypatch.setattr(Idx, "parts", parts)
    return seen


def test_a_second_load_reads_no_files_and_gives_the_same(tmp_path: Path, conversions: list[Path]) -> None:
    first = load(mnist(tmp_path))
    assert len(conversions) == 1
    second = load(tmp_path)
    assert len(conversions) == 1
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.x, torch.from_numpy(random_pictures(20)))
    assert torch.equal(first.y, second.y)
    assert first.contents_hash() == second.contents_hash()


def test_arrays_are_bytes_mapped_into_memory(tmp_path: Path, cache: Path) -> None:
    data = load(mnist(tmp_path))
    assert data.x.dtype == data.test[0].dtype == torch.uint8
    (folder,) = entries(cache)
    kept = module._opened(folder)
    assert isinstance(kept.array("train-x"), np.memmap)
    assert kept.array("train-x").mode == "c"


def test_what_is_written_into_a_loaded_set_stays_out_of_the_cache(tmp_path: Path, conversions: list[Path]) -> None:
    data = load(mnist(tmp_path))
    before = data.x.clone()
    data.x.zero_()
    assert torch.equal(load(tmp_path).x, before)
    assert len(conversions) == 1


def newer(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def longer(path: Path) -> None:
    """Of the same time but another size; nothing reads this file."""
    status = path.stat()
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [newer, longer])
def test_changed_files_are_converted_again(
    tmp_path: Path, conversions: list[Path], change: Callable[[Path], None]
) -> None:
    load(mnist(tmp_path))
    note = tmp_path / "mnist" / "note.txt"
    note.write_text("a file")
    load(tmp_path)
    assert len(conversions) == 2, "one more file"
    change(note)
    load(tmp_path)
    load(tmp_path)
    assert len(conversions) == 3


def test_another_content_is_another_set(tmp_path: Path) -> None:
    first, second = load(mnist(tmp_path)), load(mnist(tmp_path, seed=1))
    assert not torch.equal(first.x, second.x)
    assert first.contents_hash() != second.contents_hash()


def test_the_key_tells_everything_apart_that_matters(tmp_path: Path) -> None:
    write_files(tmp_path, {"one": b"1", "two": b"2"})
    files = [tmp_path / "one", tmp_path / "two"]
    keys = [
        key(tmp_path, files, how=Idx()),
        key(tmp_path, files, how=Idx(transposed=True)),
        key(tmp_path, files[:1], how=Idx()),
    ]
    assert len(set(keys)) == 3
    assert key(tmp_path, files, how=Idx()) == keys[0]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip_a_bit(folder / "train-x.npy"),
        lambda folder: (folder / "train-x.npy").write_bytes(b""),
        lambda folder: (folder / "test-y.npy").unlink(),
        lambda folder: (folder / "set.json").unlink(),
        lambda folder: (folder / "set.json").write_text(""),
        lambda folder: (folder / "set.json").write_text("[]"),
        lambda folder: (folder / "set.json").write_text("null"),
        lambda folder: (folder / "set.json").write_text("{}"),
        lambda folder: (folder / "set.json").write_bytes(b"\xff\xfe"),
    ],
    ids=["bit", "empty", "missing", "no description", "empty description", "list", "null", "nothing", "no text"],
)
def test_a_damaged_entry_is_made_again(
    tmp_path: Path, cache: Path, conversions: list[Path], damage: Callable[[Path], object]
) -> None:
    expected = load(mnist(tmp_path)).x.clone()
    (folder,) = entries(cache)
    damage(folder)
    assert torch.equal(load(tmp_path).x, expected)
    load(tmp_path)
    assert len(conversions) == 2
    assert entries(cache) == [folder]


def test_a_changed_description_is_noticed() -> None:
    """Names of domains and the words of a vocabulary have a checksum, too."""

    def build(writer: Writer) -> None:
        writer.facts["domains"] = ["art", "photo"]
        writer.add("train-y", np.arange(3))

    made = entry("set", build)
    path = made.folder / "set.json"
    path.write_text(path.read_text().replace("photo", "phono"))
    assert entry("set", build).facts == {"domains": ["art", "photo"]}


def test_an_older_format_is_made_again(cache: Path) -> None:
    made = entry("set", lambda writer: writer.add("y", np.arange(3)))
    path = made.folder / "set.json"
    described = json.loads(path.read_text())
    described.pop("sum")
    described["format"] -= 1
    path.write_text(json.dumps(described | {"sum": module._sum_of_text(described)}))
    assert module._opened(made.folder) is None
    assert entry("set", lambda writer: writer.add("y", np.arange(4))).array("y").tolist() == [0, 1, 2, 3]


class Stop(BaseException):
    """As Ctrl-C or an exit."""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Stop, SystemExit])
def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, cache: Path, error: type[BaseException]) -> None:
    def build(writer: Writer) -> None:
        writer.add("train-y", np.arange(3))
        writer.create("train-x", (3, 2), np.uint8)[:] = 1
        raise error

    with pytest.raises(error):
        entry("set", build)
    assert entries(cache) == left_over(cache) == []
    assert entry("set", lambda writer: writer.add("y", np.arange(3))).has("y")
    assert left_over(cache) == []


def test_a_conversion_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    mnist(tmp_path)
    write_files(tmp_path, {"mnist/train-labels-idx1-ubyte": idx(np.full(20, 10))})
    with refused("data: mnist train sample 0 has class 10, outside 0..9"):
        load(tmp_path)
    assert entries(cache) == left_over(cache) == []


@pytest.mark.parametrize("locks", [True, False])
def test_many_at_once_all_get_the_entry(cache: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads, which meet in every order; with locks one does the work and the others wait."""
    if not locks:
        monkeypatch.setattr(module, "fcntl", None)
    elif module.fcntl is None:
        pytest.skip("the system has no such locks")
    together, built = threading.Barrier(8), []

    def build(writer: Writer) -> None:
        built.append(writer)
        writer.add("y", np.arange(1000))

    def one(name: str) -> Entry:
        together.wait()
        return entry(name, build)

    with ThreadPoolExecutor(8) as pool:
        for attempt in range(10):
            made = list(pool.map(one, [f"set-{attempt}"] * 8))
            assert all(np.array_equal(some.array("y"), np.arange(1000)) for some in made)
            assert len({some.digest for some in made}) == 1
    assert len(entries(cache)) == 10
    assert left_over(cache) == []
    if locks:
        assert len(built) == 10


TWO = """
import sys
from pathlib import Path
from fedflat.data import load
Path(sys.argv[2]).touch()
while not Path(sys.argv[3]).exists():
    pass
print(load("mnist", clients=2, data_dir=sys.argv[1], partial=True).contents_hash())
"""


def test_two_processes_at_once_both_succeed(tmp_path: Path, cache: Path) -> None:
    mnist(tmp_path, n=500)
    ready = [tmp_path / name for name in ("one", "two")]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(tmp_path), str(mine), str(other)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mine, other in (ready, ready[::-1])
    ]
    said = [process.communicate() for process in started]
    assert [errors for _, errors in said] == ["", ""]
    assert {output.strip() for output, _ in said} == {load(tmp_path).contents_hash()}
    assert len(entries(cache)) == 1
    assert left_over(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "file" / "cache"))
    with refused(str(tmp_path / "file" / "cache"), "cannot be written: Not a directory; set FEDFLAT_CACHE"):
        load(mnist(tmp_path))
    monkeypatch.setenv("FEDFLAT_CACHE", str(tmp_path / "file"))
    with refused(str(tmp_path / "file"), "cannot be written", "FEDFLAT_CACHE"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_must_not_be_written(tmp_path: Path, cache: Path) -> None:
    cache.mkdir(mode=0o500)
    with refused(str(cache), "cannot be written: Permission denied; set FEDFLAT_CACHE"):
        load(mnist(tmp_path))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve room on disk")
def test_a_full_disk_is_noticed_before_pictures_are_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing to a mapped file on a full disk would end the process without a word."""

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused(str(cache), "cannot be written: No space left on device; set FEDFLAT_CACHE"):
        load(mnist(tmp_path))
    assert entries(cache) == left_over(cache) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system cannot reserve room on disk")
def test_the_room_of_an_array_is_taken_when_it_is_made(tmp_path: Path) -> None:
    Writer(tmp_path).create("x", (1000, 1000), np.uint8)
    assert (tmp_path / "x.npy").stat().st_blocks * 512 >= 1_000_000


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDFLAT_CACHE", "~/kept")
    assert cache_folder() == tmp_path / "kept"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FEDFLAT_CACHE")
    assert cache_folder().name == "fedflat"


def test_a_second_load_takes_little_more_memory_than_the_pictures(tmp_path: Path) -> None:
    """60 MB of pictures."""
    data = load(mnist(tmp_path, n=76_531))
    bytes_of_pictures = data.x.numel() + data.test[0].numel()
    assert bytes_of_pictures > 60_000_000
    peak, total = peak_of_a_load("mnist", tmp_path, partial=True)
    assert total == sum(int(x.view(-1)[::1024].sum()) for x in (data.x, data.test[0]))
    assert 0.9 * bytes_of_pictures < peak < 1.3 * bytes_of_pictures
