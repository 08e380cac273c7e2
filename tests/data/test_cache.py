from __future__ import annotations

import errno
import fcntl
import gc
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.data import cache as module
from fedflat.data.cache import Entry, SourceFiles, Writer, cache_folder, check, entry, key, open_entry
from fedflat.data.readers.layouts import Idx
from support.files import idx, mnist, random_pictures, refused, write_files
from support.memory import peak_of_a_load

NOTHING = SourceFiles(Path(), [])


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
    kept = open_entry(folder)
    assert isinstance(kept.arrays["train-x"], np.memmap)
    assert kept.arrays["train-x"].mode == "c"


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


def other(path: Path) -> None:
    """Of the same size."""
    flip_a_bit(path)
    newer(path)


def renamed(path: Path) -> None:
    path.rename(path.with_name("another name"))


@pytest.mark.parametrize("change", [longer, other, renamed, Path.unlink])
def test_changed_files_are_converted_again_and_replace_the_entry(
    tmp_path: Path, cache: Path, conversions: list[Path], change: Callable[[Path], None]
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
    assert len(entries(cache)) == 1


def test_new_times_of_the_same_contents_convert_nothing(
    tmp_path: Path, cache: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contents are compared once, and never while no time differs."""
    compared, original = [], SourceFiles.content.func
    monkeypatch.setattr(SourceFiles, "content", property(lambda self: compared.append(self) or original(self)))
    before = load(mnist(tmp_path)).x.clone()
    compared.clear()
    load(tmp_path)
    assert compared == []
    for path in (tmp_path / "mnist").iterdir():
        newer(path)
    assert torch.equal(load(tmp_path).x, before)
    assert compared
    compared.clear()
    load(tmp_path)
    assert compared == [], "the new times are kept"
    assert len(conversions) == len(entries(cache)) == 1


def test_new_pictures_replace_the_old_ones(tmp_path: Path, cache: Path) -> None:
    first = load(mnist(tmp_path))
    kept = first.x.clone()
    second = load(mnist(tmp_path, seed=1))
    assert torch.equal(second.x, torch.from_numpy(random_pictures(20, seed=1)))
    assert torch.equal(first.x, kept), "who has loaded the old ones keeps them"
    assert len(entries(cache)) == 1
    assert left_over(cache) == []


def test_files_that_change_while_they_are_read_are_named(tmp_path: Path, cache: Path) -> None:
    mnist(tmp_path)
    sources = SourceFiles(tmp_path / "mnist", list((tmp_path / "mnist").iterdir()))
    with refused(f"data folder {tmp_path / 'mnist'}: its files changed while they were read"):
        entry("set", sources, lambda writer: longer(tmp_path / "mnist" / "train-labels-idx1-ubyte"))
    assert entries(cache) == left_over(cache) == []


def test_another_content_is_another_set(tmp_path: Path) -> None:
    first, second = load(mnist(tmp_path)), load(mnist(tmp_path, seed=1))
    assert not torch.equal(first.x, second.x)
    assert first.contents_hash() != second.contents_hash()


def test_the_key_tells_everything_apart_that_matters(tmp_path: Path) -> None:
    keys = [key(tmp_path, how=Idx()), key(tmp_path, how=Idx(transposed=True)), key(tmp_path / "other", how=Idx())]
    assert len(set(keys)) == 3
    assert key(tmp_path, how=Idx()) == keys[0]
    (tmp_path / "link").symlink_to(tmp_path)
    assert key(tmp_path / "link", how=Idx()) == keys[0]


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
        writer.metadata["domains"] = ["art", "photo"]
        writer.add("train-y", np.arange(3))

    made = entry("set", NOTHING, build)
    path = made.folder / "set.json"
    path.write_text(path.read_text().replace("photo", "phono"))
    assert entry("set", NOTHING, build).description["facts"] == {"domains": ["art", "photo"]}


def test_an_older_format_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(module, "FORMAT", module.FORMAT - 1)
        made = entry("set", NOTHING, lambda writer: writer.add("y", np.arange(3)))
    assert open_entry(made.folder) is None
    assert entry("set", NOTHING, lambda writer: writer.add("y", np.arange(4))).arrays["y"].tolist() == [0, 1, 2, 3]


class Stop(BaseException):
    """As Ctrl-C or an exit."""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, Stop, SystemExit])
def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, cache: Path, error: type[BaseException]) -> None:
    def build(writer: Writer) -> None:
        writer.add("train-y", np.arange(3))
        with writer.rows("train-x", (2,), np.uint8) as rows:
            rows.add(np.ones((3, 2)))
            raise error

    with pytest.raises(error):
        entry("set", NOTHING, build)
    assert entries(cache) == left_over(cache) == []
    assert entry("set", NOTHING, lambda writer: writer.add("y", np.arange(3))).arrays["y"].size
    assert left_over(cache) == []


def test_a_conversion_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    mnist(tmp_path)
    write_files(tmp_path, {"mnist/train-labels-idx1-ubyte": idx(np.full(20, 10))})
    with refused("data: mnist train sample 0 has class 10, outside 0..9"):
        load(tmp_path)
    assert entries(cache) == left_over(cache) == []


def no_locks(handle: int, kind: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("locks", [True, False])
def test_many_at_once_all_get_the_entry(cache: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads, which meet in every order; with locks one does the work and the others wait."""
    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    together, built = threading.Barrier(8), []

    def build(writer: Writer) -> None:
        built.append(writer)
        writer.add("y", np.arange(1000))

    def one(name: str) -> Entry:
        together.wait()
        return entry(name, NOTHING, build)

    with ThreadPoolExecutor(8) as pool:
        for attempt in range(10):
            made = list(pool.map(one, [f"set-{attempt}"] * 8))
            assert all(np.array_equal(some.arrays["y"], np.arange(1000)) for some in made)
            assert len({some.digest for some in made}) == 1
    assert len(entries(cache)) == 10
    assert left_over(cache) == []
    if locks:
        assert len(built) == 10


def test_threads_read_an_entry_while_garbage_is_collected(cache: Path) -> None:
    """Before Python 3.12 a thread that pauses in `ast.parse` lets another one fail that is not as deep in calls."""
    entry("set", NOTHING, lambda writer: writer.add("y", np.arange(1000)))

    def read(depth: int) -> bool:
        if depth:
            return read(depth - 1)
        return all(open_entry(cache / "set") is not None for _ in range(120))

    before = gc.get_threshold()
    gc.callbacks.append(lambda *_: time.sleep(0))
    gc.set_threshold(20)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, (0, 5, 11, 17)))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.pop()


def killed(cache: Path, of: str = "set") -> Path:
    """What a conversion that was killed leaves."""
    folder = cache / f".tmp-fedflat-{of}-{'0' * 16}"
    write_files(folder, {"train-x.npy": b"half"})
    return folder


def test_what_killed_conversions_left_is_removed_and_nothing_else(tmp_path: Path, cache: Path) -> None:
    killed(cache)
    mine = [cache / name for name in (".tmp-mine", ".tmp-fedflat-set", f".tmp-fedflat-set-{'0' * 17}", "speed.json")]
    for folder in (*mine, killed(cache, "other")):
        write_files(folder, {"kept": b""})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").touch()
    link = cache / f".tmp-fedflat-set-{'1' * 16}"
    link.symlink_to(tmp_path / "mine")
    entry("set", NOTHING, lambda writer: writer.add("y", np.arange(3)))
    there = {path.name for path in cache.iterdir()}
    assert there == {*(path.name for path in mine), killed(cache, "other").name, link.name, "set", ".set.lock"}
    assert (tmp_path / "mine" / "kept").exists()


@pytest.mark.parametrize("locks", [True, False])
def test_a_conversion_that_is_going_on_is_not_swept(cache: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process waits for the first; where there are no locks, it sweeps nothing."""
    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    begun, built = threading.Event(), []

    def slow(writer: Writer) -> None:
        begun.set()
        time.sleep(0.3)  # while the second, if it were to sweep, would take the first one's folder away
        writer.add("y", np.arange(3))
        built.append(writer)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(entry, "set", NOTHING, slow)
        begun.wait()
        second = pool.submit(entry, "set", NOTHING, slow)
        assert first.result().digest == second.result().digest
    assert len(built) == (1 if locks else 2)
    assert left_over(cache) == []


@pytest.mark.parametrize(("mask", "folders", "files"), [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644)])
def test_who_may_read_the_cache_is_said_by_the_umask(
    tmp_path: Path, cache: Path, mask: int, folders: int, files: int
) -> None:
    mnist(tmp_path)
    before = os.umask(mask)
    try:
        load(tmp_path)
    finally:
        os.umask(before)
    (made,) = entries(cache)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, made)] == [folders, folders]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*made.iterdir(), *cache.glob(".*.lock"))} == {files}


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    target = tmp_path / "mine"
    target.write_text("kept")
    (cache / ".set.lock").symlink_to(target)
    with refused(str(cache), "cannot be written"):
        entry("set", NOTHING, lambda writer: writer.add("y", np.arange(3)))
    assert target.read_text() == "kept"


def test_an_entry_is_on_disk_before_it_has_its_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its files is synced, then its folder moved, then the folder of all entries synced."""
    happened: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def name_of(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    monkeypatch.setattr(os, "fsync", lambda handle: happened.append(name_of(handle)) or fsync(handle))
    monkeypatch.setattr(Path, "rename", lambda self, to: happened.append(f"to {to.name}") or rename(self, to))
    load(mnist(tmp_path))
    (made,) = entries(cache)
    moved = happened.index(f"to {made.name}")
    arrays = {path.name for path in made.glob("*.npy")}
    assert len(arrays) == 4
    assert arrays < set(happened[:moved])
    assert any(name.endswith(".json") for name in happened[:moved])
    assert cache.name in happened[moved:]


def test_the_state_of_all_entries_is_told(tmp_path: Path, cache: Path) -> None:
    assert check(cache) == []
    names = [f"set-{i:012x}" for i in range(6)]
    for name in names:
        entry(name, NOTHING, lambda writer: writer.add("y", np.arange(3)))
    flip_a_bit(cache / names[1] / "y.npy")
    (cache / names[2] / "y.npy").unlink()
    (cache / names[3] / "set.json").unlink()
    (cache / names[4] / "set.json").write_text('{"format": 1}')
    write_files(cache, {"speed.json": b"{}", "my-folder/file": b""})
    left = killed(cache, names[5])
    found = dict(check(cache))
    assert found.keys() == {*names, left.name}
    assert [found[name] for name in (names[0], names[5])] == ["", ""]
    for name, said in zip(
        names[1:5], ["y.npy is damaged", "y.npy", "set.json", "set.json is not of format"], strict=True
    ):
        assert said in found[name]
    assert "left by a conversion" in found[left.name]
    assert left.exists(), "nothing is changed"


def test_of_a_conversion_that_is_going_on_nothing_is_said(cache: Path) -> None:
    said = []

    def build(writer: Writer) -> None:
        said.extend(check(cache))
        writer.add("y", np.arange(3))

    entry("set", NOTHING, build)
    assert said == []


TWO = """
import sys
from pathlib import Path
from fedflat.data import load
Path(sys.argv[2]).touch()
while not Path(sys.argv[3]).exists():
    pass
print(load("mnist", clients=2, data_dir=sys.argv[1], partial=True).contents_hash())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
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


def test_a_full_disk_ends_in_one_line_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    """A limit on the size of files stands for the end of a disk."""
    resource = pytest.importorskip("resource")
    mnist(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with refused(str(cache), "cannot be written: File too large; set FEDFLAT_CACHE"):
            load(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert entries(cache) == left_over(cache) == []


@pytest.mark.parametrize("shape", [(), (3,), (1, 28, 28)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_rows_that_are_written_one_after_another_are_one_array(
    tmp_path: Path, shape: tuple[int, ...], dtype: type[Any]
) -> None:
    whole = np.random.default_rng(0).integers(0, 200, (1234, *shape)).astype(dtype)
    with Writer(tmp_path).rows("x", shape, dtype) as rows:
        for piece in np.array_split(whole, [1, 1, 1000]):
            rows.add(piece)
    found = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert found.dtype == dtype
    assert np.array_equal(found, whole)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDFLAT_CACHE", "~/kept")
    assert cache_folder() == tmp_path / "kept"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FEDFLAT_CACHE")
    assert cache_folder().name == "fedflat"


@pytest.mark.slow
def test_a_second_load_takes_little_more_memory_than_the_pictures(tmp_path: Path) -> None:
    """60 MB of pictures."""
    data = load(mnist(tmp_path, n=76_531))
    bytes_of_pictures = data.x.numel() + data.test[0].numel()
    assert bytes_of_pictures > 60_000_000
    peak, total = peak_of_a_load("mnist", tmp_path, partial=True)
    assert total == sum(int(x.view(-1)[::1024].sum()) for x in (data.x, data.test[0]))
    assert 0.9 * bytes_of_pictures < peak < 1.3 * bytes_of_pictures
