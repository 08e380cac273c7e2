"""Every file that was said to be written is there after a power failure, on a disk that keeps no more than it must."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from fedflat.core.records import Record, Vector
from fedflat.data import cache
from fedflat.data.cache import SourceFiles, entry
from fedflat.experiments import runner
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.verification import verify_run
from fedflat.federation.client import ClientState
from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.federation.launch.certificates import Certificates
from fedflat.files import flush_folder, make_folder, write_atomically
from fedflat.metrics.flatness.surface import Surface
from fedflat.rounds import checkpoint
from fedflat.rounds.checksums import Checksums
from support.durability import spec
from support.flower_fixtures import GridFederation, study_of
from support.forgetful_disk import ForgetfulDisk, State

Write = Callable[[Path, bytes], object]


class Kept(Record):
    c: Vector


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that is watched; pytest's own is not."""
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture
def disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgetfulDisk]:
    (folder / "file").write_bytes(b"old")
    with monkeypatch.context() as patch, ForgetfulDisk(folder, patch) as disk:
        yield disk


def is_lasting(disk: ForgetfulDisk, path: Path, write: Write) -> bool:
    """Whether the file `path`, b"old" or not there, is so or b"new" while `write` goes on, and b"new" after it."""
    old = path.read_bytes() if path.exists() else None
    name = path.name
    during = disk.during(lambda: write(path, b"new"))
    after = disk.after_a_crash()
    return {state.get(name) for state in during} <= {old, b"new"} and {state.get(name) for state in after} == {b"new"}


def by_us(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


@pytest.mark.parametrize("name", ["file", "new"])
def test_a_file_is_the_old_one_or_the_new_one_and_then_the_new_one(
    name: str, disk: ForgetfulDisk, folder: Path
) -> None:
    assert is_lasting(disk, folder / name, by_us)


# --- the disk itself: writers that forget a step ----------------------------------------------------------------------


def synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def right(path: Path, content: bytes) -> None:
    temporary = path.with_name("temporary")
    temporary.write_bytes(content)
    synced(temporary)
    os.replace(temporary, path)
    synced(path.parent)


def without_syncing_the_content(path: Path, content: bytes) -> None:
    temporary = path.with_name("temporary")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    synced(path.parent)


def without_syncing_the_folder(path: Path, content: bytes) -> None:
    temporary = path.with_name("temporary")
    temporary.write_bytes(content)
    synced(temporary)
    os.replace(temporary, path)


def moved_before_it_is_synced(path: Path, content: bytes) -> None:
    temporary = path.with_name("temporary")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    synced(path)
    synced(path.parent)


def syncing_another_file(path: Path, content: bytes) -> None:
    temporary, other = path.with_name("temporary"), path.with_name("other")
    temporary.write_bytes(content)
    other.write_bytes(content)
    synced(other)
    os.replace(temporary, path)
    synced(path.parent)


def syncing_before_it_is_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name("temporary")
    temporary.write_bytes(content[:1])
    synced(temporary)
    temporary.write_bytes(content)
    os.replace(temporary, path)
    synced(path.parent)


def in_place(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    synced(path)
    synced(path.parent)


def test_a_writer_that_forgets_nothing_is_found_right(disk: ForgetfulDisk, folder: Path) -> None:
    assert is_lasting(disk, folder / "file", right)


@pytest.mark.parametrize(
    "write",
    [without_syncing_the_content, without_syncing_the_folder, moved_before_it_is_synced, syncing_another_file,
     syncing_before_it_is_whole, in_place],
)  # fmt: skip
def test_a_writer_that_forgets_a_step_is_found_out(write: Write, disk: ForgetfulDisk, folder: Path) -> None:
    assert not is_lasting(disk, folder / "file", write)


def test_a_folder_lasts_when_the_one_above_it_is_synced(disk: ForgetfulDisk, folder: Path) -> None:
    """A synced name in a folder that has none itself is lost."""
    (folder / "a").mkdir()
    right(folder / "a" / "file", b"new")
    assert any("a/file" not in state for state in disk.after_a_crash())
    flush_folder(folder)
    assert {state.get("a/file") for state in disk.after_a_crash()} == {b"new"}


def test_a_removed_file_may_come_back_until_its_folder_is_synced(disk: ForgetfulDisk, folder: Path) -> None:
    (folder / "file").unlink()
    assert {state.get("file") for state in disk.after_a_crash()} == {b"old", None}
    flush_folder(folder)
    assert {state.get("file") for state in disk.after_a_crash()} == {None}


# --- what the rooms write ---------------------------------------------------------------------------------------------


def test_a_new_folder_lasts_with_its_files(disk: ForgetfulDisk, folder: Path) -> None:
    make_folder(folder / "a" / "b")
    by_us(folder / "a" / "b" / "file", b"new")
    assert {state.get("a/b/file") for state in disk.after_a_crash()} == {b"new"}


def left_by(disk: ForgetfulDisk, folder: Path) -> Iterator[tuple[int, Path]]:
    """What every crash so far may leave, as files below `folder`: the number of the operation that it comes before, and
    the place. Of equal ones only the last is given: the later a crash is, the more must be there."""
    disk.end()
    last = {frozenset(state.items()): number for number, crash in enumerate(disk.crashes) for state in crash}
    for place, (state, number) in enumerate(last.items()):
        yield number, written(dict(state), folder / f"left-{place}")


def written(state: State, folder: Path) -> Path:
    """`state` as files in `folder`."""
    for name, content in state.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


class Promises:
    """Notes how many rounds had been said to be saved before each operation of `disk`."""

    def __init__(self, disk: ForgetfulDisk) -> None:
        self._disk, self._noted = disk, [(0, 0)]

    def after(self, function: Callable[..., object], rounds: Callable[..., int]) -> Callable[..., None]:
        """`function`, whose end is the promise that so many rounds are saved."""

        def noting(*arguments: object) -> None:
            function(*arguments)
            self._noted.append((len(self._disk.crashes), rounds(*arguments)))

        return noting

    def before(self, number: int) -> int:
        """The rounds that must be there after a crash before the operation `number`."""
        return max(rounds for first, rounds in self._noted if first <= number)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "file"])
def test_a_run_keeps_every_state_that_it_has_saved_and_no_file_of_it_is_damaged(
    store: str, disk: ForgetfulDisk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power fails before each of its file operations; the summary, which says that it is finished, comes last."""
    promises = Promises(disk)
    monkeypatch.setattr(RunDirectory, "save", promises.after(RunDirectory.save, lambda _, sim: sim.t))
    runner.run(spec(store).model_copy(update={"rounds": 4}), folder / "run")
    assert len(disk.crashes) > 50
    for number, left in left_by(disk, tmp_path):
        directory = RunDirectory(left / "run")
        assert directory.damaged_files() == []
        assert newest_whole(directory) >= promises.before(number)
        if directory.is_finished:
            assert promises.before(number) == 4
            assert {"config.toml", "metrics.parquet", "model.safetensors"} <= {p.name for p in directory.path.iterdir()}
    assert all("run/summary.json" in state for state in disk.after_a_crash())


def test_a_file_and_what_is_noted_of_it_never_contradict_each_other(
    disk: ForgetfulDisk, folder: Path, tmp_path: Path
) -> None:
    """Also while the file is replaced by another one."""
    for content in (b"one", b"other"):
        Checksums(folder).write("noted", lambda path, content=content: path.write_bytes(content))
    for number, left in left_by(disk, tmp_path):
        assert Checksums(left).problem("noted") is None
        assert number < disk.last or Checksums(left).names == ["noted"]


def newest_whole(directory: RunDirectory) -> int:
    """The rounds of the newest state that is whole; 0 if there is none."""
    damaged = {verdict.path for verdict in verify_run(directory.path) if verdict.problem}
    whole = [checkpoint.round_of(path) or 0 for path in directory.checkpoints if path not in damaged]
    return max(whole, default=0)


def test_what_a_client_of_a_federation_keeps_lasts(disk: ForgetfulDisk, folder: Path, tmp_path: Path) -> None:
    """A record counts from the end of `save` on, and until then the one before it does; the folder is new, too."""
    records = {t: Kept(torch.full((3,), float(t))) for t in range(4)}
    promises = Promises(disk)
    keep = promises.after(ClientState(folder / "state" / "client", Kept).save, lambda t, *_: t + 1)
    for t, record in records.items():
        keep(t, record, {t - 1})
    for number, left in left_by(disk, tmp_path):
        kept = promises.before(number) - 1
        if kept >= 0:
            assert torch.equal(ClientState(left / "state" / "client", Kept).load(kept, records[0]).c, records[kept].c)


@pytest.mark.slow
def test_a_federation_keeps_every_state_that_it_has_saved(
    disk: ForgetfulDisk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = Promises(disk)
    save = promises.after(FederationDirectory.save, lambda _, server, *__: server.t)
    monkeypatch.setattr(FederationDirectory, "save", save)
    federation = GridFederation(study_of(method="scaffold"), folder)
    federation.serve()
    for number, left in left_by(disk, tmp_path):
        state = FederationDirectory(left / "out").newest()
        assert (state.rounds if state else 0) >= promises.before(number)
        if (left / "out" / "result.json").exists():
            assert not [why for _, why in check(left / "out") if why]
    assert all("out/result.json" in state for state in disk.after_a_crash())


@pytest.mark.slow
def test_a_federation_that_went_back_is_back(disk: ForgetfulDisk, folder: Path, tmp_path: Path) -> None:
    federation = GridFederation(study_of(), folder)
    federation.serve()
    disk.begin()
    FederationDirectory(federation.out).roll_back(2)
    for number, left in left_by(disk, tmp_path):
        state = FederationDirectory(left / "out").newest()
        assert state is not None
        assert state.rounds in ((2,) if number == disk.last else (2, 3, 4))
        assert state.rounds == 4 or not (left / "out" / "result.json").exists(), "a result beside an older state"


def test_a_set_that_was_converted_lasts_and_is_whole_or_not_there(
    disk: ForgetfulDisk, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second conversion, of other files, takes the place of the first one."""
    monkeypatch.setenv("FEDFLAT_CACHE", str(folder / "cache"))
    for value in (1, 2):
        (folder / "file").write_bytes(bytes(value))
        sources = SourceFiles(folder, [folder / "file"])
        flush_folder(folder)
        disk.begin()
        entry("set", sources, lambda writer, value=value: writer.add("y", np.full(3, value)))
        for number, left in left_by(disk, tmp_path / str(value)):
            found = opened(left / "cache" / "set")
            assert found in ((str(value),) if number == disk.last else ("", str(value - 1), str(value)))


def opened(entry_folder: Path) -> str:
    """The number in the entry of the cache; empty if it is missing or damaged, and would be made again."""
    found = cache.open_entry(entry_folder)
    return "" if found is None else str(found.arrays["y"][0])


def test_keys_that_were_being_made_are_made_again_or_are_whole(
    disk: ForgetfulDisk, folder: Path, tmp_path: Path
) -> None:
    made = Certificates(folder / "keys").make(["localhost"], ["a"])
    names = [str(path.relative_to(folder)) for path in made]
    for number, left in left_by(disk, tmp_path):
        again = Certificates(left / "keys").make(["localhost"], ["a"])
        assert again == [] or number < disk.last
        for name in names:
            if left / name not in again:
                assert (left / name).read_bytes() == (folder / name).read_bytes()
            assert (left / name).stat().st_size


SURFACE = Surface("FedAvg", "global model", ("a", "b"), np.arange(3.0), np.arange(2.0), np.zeros((2, 3)), (), "how")
WRITERS: dict[str, Callable[[Path], object]] = {
    "surface.npz": SURFACE.save,
    "state.safetensors": lambda path: checkpoint.save(path, {"server.w": torch.arange(3.0)}, {"t": 3}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_other_files_are_whole_or_not_there_and_last(name: str, disk: ForgetfulDisk, folder: Path) -> None:
    during = disk.during(lambda: WRITERS[name](folder / name))
    content = (folder / name).read_bytes()
    assert {state.get(name) for state in during} <= {None, content}
    assert {state.get(name) for state in disk.after_a_crash()} == {content}
