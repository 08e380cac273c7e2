"""The state of a client: undamaged or reported as damaged, private, and no more of it than may be needed."""

from __future__ import annotations

import json
import os
import random
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedflat.core.errors import InputError
from fedflat.core.records import Record, Vector, per_round
from fedflat.federation.client import HEADER, ClientState
from support.effort import effort


class Kept(Record):
    c: Vector
    mu: Vector
    passing: Vector = per_round()


def kept(seed: int, width: int = 40) -> Kept:
    numbers = torch.Generator().manual_seed(seed)
    return Kept(*(torch.randn(width, generator=numbers) for _ in range(3)))


FIRST = Kept(*(torch.zeros(40) for _ in range(3)))


def file_of(folder: Path, t: int) -> Path:
    return folder / f"round-{t:08d}.safetensors"


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    state, record = ClientState(tmp_path / "a", Kept), kept(1)
    state.save(3, record, set())
    again = state.load(3, FIRST)
    assert torch.equal(again.c, record.c)
    assert torch.equal(again.mu, record.mu)
    assert torch.equal(again.passing, FIRST.passing), "it is not saved"
    assert state.load(-1, FIRST) is FIRST


@pytest.mark.slow
def test_no_flipped_bit_is_silent(tmp_path: Path) -> None:
    """Every bit, or thousands of them: the record is as it was written, or the damage is reported."""
    rng, state, record = random.Random(0), ClientState(tmp_path, Kept), kept(2)
    state.save(3, record, set())
    file = file_of(tmp_path, 3)
    whole = file.read_bytes()
    bits = rng.sample(range(8 * len(whole)), effort(4000, 8 * len(whole)))
    reported = 0
    for bit in bits:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        file.write_bytes(content)
        reported += reports_damage(state, record, file)
    assert reported > 0.99 * len(bits), "some flips in a header change nothing"


def test_no_other_damage_is_silent(tmp_path: Path) -> None:
    """Cut short, made longer, overwritten, zeroed in places, and another round's."""
    rng, state, record = random.Random(1), ClientState(tmp_path, Kept), kept(2)
    state.save(2, kept(5), set())
    state.save(3, record, {2})
    file, other = file_of(tmp_path, 3), file_of(tmp_path, 2).read_bytes()
    whole = file.read_bytes()
    assert len(other) == len(whole)
    for _ in range(effort(400, 20_000)):
        a, b = sorted(rng.sample(range(len(whole) + 1), 2))
        damaged = rng.choice([whole[:a], whole[a:], whole + rng.randbytes(b), whole[:a] + bytes(b - a) + whole[b:],
                              whole[:a] + rng.randbytes(b - a) + whole[b:], whole[:a] + other[a:]])  # fmt: skip
        file.write_bytes(damaged)
        assert reports_damage(state, record, file) or damaged == whole
    file.write_bytes(other)
    with pytest.raises(InputError, match="is damaged: it is not what was written after round 3"):
        state.load(3, FIRST)


def reports_damage(state: ClientState, record: Kept, file: Path) -> bool:
    """Whether loading reports that the file is damaged; if not, it must return what was saved."""
    reason, again = "", record
    try:
        again = state.load(3, FIRST)
    except InputError as error:
        reason = str(error)
    assert not reason or reason.startswith(f"client record {file}")
    assert "\n" not in reason
    assert len(reason) < 600
    assert torch.equal(again.c, record.c)
    assert torch.equal(again.mu, record.mu)
    return bool(reason)


def test_a_record_without_a_digest_is_refused(tmp_path: Path) -> None:
    record = kept(4)
    save_file({"c": record.c, "mu": record.mu}, file_of(tmp_path, 3))
    with pytest.raises(InputError, match="is damaged: it is not what was written after round 3"):
        ClientState(tmp_path, Kept).load(3, FIRST)


def test_a_file_of_any_size_takes_no_more_memory_than_a_record(tmp_path: Path) -> None:
    with file_of(tmp_path, 3).open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InputError, match=f"has more than {HEADER + 2 * 40 * 4:,} bytes"):
        ClientState(tmp_path, Kept).load(3, FIRST)
    deep = b"[" * 50_000
    file_of(tmp_path, 3).write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(InputError, match="cannot be read"):
        ClientState(tmp_path, Kept).load(3, FIRST)
    file_of(tmp_path, 3).unlink()
    os.mkfifo(file_of(tmp_path, 3))
    with pytest.raises(InputError, match="is not a file"):
        ClientState(tmp_path, Kept).load(3, FIRST)


@pytest.mark.parametrize("content", [{"c": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, [], 3, {"c": None}])
def test_headers_of_other_kinds_are_reported_in_one_line(content, tmp_path: Path) -> None:
    text = json.dumps(content).encode()
    file_of(tmp_path, 3).write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(InputError, match=r"^client record .* cannot be read: [^\n]+$"):
        ClientState(tmp_path, Kept).load(3, FIRST)


def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    """Whatever the umask is; a folder that exists already is closed too."""
    before = os.umask(0o000)
    try:
        old = tmp_path / "state" / "name" / "old"
        old.mkdir(parents=True)
        for folder in (tmp_path / "new" / "name" / "client", old):
            ClientState(folder, Kept).save(3, kept(1), set())
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in [*(tmp_path / "new").rglob("*"), tmp_path / "new", old, file_of(old, 3)]
    }
    assert {mode for name, mode in modes.items() if name.endswith(".safetensors")} == {0o600}
    assert {mode for name, mode in modes.items() if not name.endswith(".safetensors")} == {0o700}


def test_errors_in_writing_are_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the round before stays."""
    state = ClientState(tmp_path / "a", Kept)
    state.save(2, kept(1), set())
    monkeypatch.setattr(Path, "write_bytes", _full)
    with pytest.raises(InputError, match=r"round-00000003.safetensors cannot be written: No space left on device"):
        state.save(3, kept(2), set())
    assert torch.equal(state.load(2, FIRST).c, kept(1).c)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["round-00000002.safetensors"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        ClientState(tmp_path / "file" / "client", Kept).save(3, kept(2), set())


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_request_that_arrives_late_or_twice_removes_no_later_record(tmp_path: Path) -> None:
    """The network may deliver that of round 1 again after that of round 3, whose record the next one needs."""
    state = ClientState(tmp_path, Kept)
    state.save(1, kept(1), set())
    state.save(3, kept(3), {1})
    state.save(1, kept(1), set())
    assert torch.equal(state.load(3, FIRST).c, kept(3).c)
    state.save(4, kept(4), {3})
    assert sorted(path.name for path in tmp_path.iterdir()) == [file_of(tmp_path, t).name for t in (3, 4)]


def test_files_that_a_killed_process_has_left_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".tmp-fedflat-0123456789abcdef.safetensors"
    left.touch()
    (tmp_path / ".tmp-mine").touch()
    ClientState(tmp_path, Kept).save(3, kept(1), set())
    assert {path.name for path in tmp_path.iterdir()} == {"round-00000003.safetensors", ".tmp-mine"}
