"""Files are written whole or not at all, read up to a stated size, and nothing of a user's is touched."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from pathlib import Path

import pytest
from safetensors import SafetensorError

from fedflat.core.errors import InputError, printable
from fedflat.files import locked, read_bytes, read_json, read_toml, sweep, temporary_folder, write_atomically, writing


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half of the ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"file\.txt cannot be written: No space left on device"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_what_safetensors_says_of_a_full_disk_is_one_line(tmp_path: Path) -> None:
    """Its error is no OSError."""

    def fail(temporary: Path) -> None:
        raise SafetensorError("I/O error:\n No space left")

    with pytest.raises(InputError, match=r"x cannot be written: I/O error: No space left$"):
        write_atomically(tmp_path / "x", fail)


@pytest.mark.parametrize(
    ("umask", "private", "mode"), [(0o077, False, 0o600), (0o022, False, 0o644), (0o022, True, 0o600)]
)
def test_the_umask_is_respected_and_private_files_are_the_owners(
    tmp_path: Path, umask: int, private: bool, mode: int
) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "x", lambda path: path.write_text("x"), private=private)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode


def test_content_then_name_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order that a power failure needs: content, rename, folder."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "content")
        fsync(handle)

    def moved(source: Path, target: Path) -> None:
        done.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", moved)
    write_atomically(tmp_path / "x", lambda path: path.write_text("x"))
    assert done == ["content", "name", "folder"]


def test_only_what_a_killed_write_left_is_swept(tmp_path: Path) -> None:
    ours, users = (
        tmp_path / ".tmp-fedflat-0123456789abcdef.json",
        [tmp_path / ".tmp-x", tmp_path / ".tmp-fedflat-notes"],
    )
    target = tmp_path / "target"
    for path in (ours, *users, target):
        path.write_text("x")
    (tmp_path / ".tmp-fedflat-0123456789abcde0").mkdir()
    (tmp_path / ".tmp-fedflat-0123456789abcde1").symlink_to(target)
    before = {path.name for path in tmp_path.iterdir()}
    sweep(tmp_path)
    assert before - {path.name for path in tmp_path.iterdir()} == {ours.name}
    sweep(tmp_path / "missing")


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Such as Lustre without the option `flock`: it is named at once, unless the lock can be done without."""

    def no_lock(handle: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    left = tmp_path / f".tmp-fedflat-{'0' * 16}"
    left.touch()
    with pytest.raises(InputError, match=r"\.lock cannot be locked: its file system has no locks"):
        writing(tmp_path, "busy").__enter__()
    with writing(tmp_path, "busy", needed=False):
        assert left.exists(), "it may be another process's"


def test_a_lock_writes_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=r"\.lock cannot be locked"), locked(tmp_path / ".lock", "busy"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
    with (
        locked(tmp_path / "other", "busy"),
        pytest.raises(InputError, match="somebody"),
        locked(tmp_path / "other", "somebody"),
    ):
        pass
    with (tmp_path / "other").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 200_000, "nested too deep"),
        (b"9" * 5000, "Exceeds the limit"),
        (b"{}" + b" " * 2000, "more than 1,000 bytes"),
        (b"\xff", "not UTF-8"),
        (b"{", "cannot be read"),
    ],
)  # fmt: skip
def test_hostile_json_is_one_line(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=problem) as told:
        read_json(tmp_path / "x.json", 1000 if b" " in content else 2**20)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [("x = " + "[" * 100_000, "nested too deep"), ("x = " + "9" * 5000, "Exceeds the limit"), ("x", "cannot be read")],
)
def test_hostile_toml_is_one_line(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "x.toml").write_text(content)
    with pytest.raises(InputError, match=problem):
        read_toml(tmp_path / "x.toml")


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing"):
        with pytest.raises(InputError, match="cannot be read"):
            read_bytes(tmp_path / name)


def test_names_cannot_move_the_cursor_or_begin_a_line() -> None:
    assert printable("a\n\x1b[31mb\u202e") == "a\\x0a\\x1b[31mb\\x202e"
    assert printable("κ Δ – ü") == "κ Δ – ü"


def test_a_temporary_folder_of_a_killed_process_goes_with_the_next_one(tmp_path: Path) -> None:
    """One that is in use stays, and so does what only has such a name."""
    if not (child := os.fork()):
        with temporary_folder("made-", tmp_path) as folder:
            (folder / "content").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    [left] = tmp_path.iterdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "made-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "made-file").write_text("a user's")
    with temporary_folder("made-", tmp_path) as used:
        assert stat.S_IMODE(used.stat().st_mode) == 0o700
        assert not left.exists()
        with temporary_folder("made-", tmp_path) as second:
            assert used.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "made-file", "made-link"]
    assert not second.exists()
