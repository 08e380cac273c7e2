"""The files of a session: their owner's alone, whole or named in one line, and gone when it is over."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedflat import operating_system
from fedflat.core.errors import InputError
from fedflat.federation.messages import RefusedError
from fedflat.federation.secure_sum.messages import MaskRequest, SharesRequest
from fedflat.federation.secure_sum.session import (
    LOCK,
    SESSION,
    STORED_SESSION,
    SUMMAND,
    UNMASKED,
    Session,
    SessionFolder,
    UnmaskedRounds,
)
from fedflat.rounds.checksums import write_checked

SHARES = SharesRequest(3, "f" * 16, "s", (0, 2, 5), (b"a" * 32,) * 3, (b"b" * 32,) * 3, (0, -1))
MASKS = MaskRequest(3, "f" * 16, "s", (0, 2), (b"x" * 132, b""))
BEGUN = Session("s", "about", 2, 2, b"c" * 32, b"m" * 32, b"e" * 32, ("mean.delta", "figures"), (0, -1), 12, b"d" * 32)
SUMS = {"mean.delta": np.arange(6).reshape(2, 3), "figures": -np.arange(6).reshape(3, 2)}


def write_as_ours(path: Path, text: str) -> None:
    """`text` with its digest, if it is JSON: what is looked at is then what it says."""
    try:
        write_checked(path, json.loads(text))
    except ValueError:
        path.write_text(text)


@pytest.mark.parametrize(
    "session",
    [BEGUN, replace(BEGUN, shares_request=SHARES), replace(BEGUN, shares_request=SHARES, mask_request=MASKS)],
)
def test_what_is_written_is_read(session: Session, tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path / "a" / "b")
    folder.begin(session, SUMS)
    loaded = folder.load("s")
    assert replace(loaded, sums_digest=session.sums_digest) == session
    found = folder.summand(loaded)
    assert list(found) == ["mean.delta", "figures"]
    assert all(np.array_equal(found[name], x) for name, x in SUMS.items())


def test_only_the_owner_can_read_it_and_nothing_is_left_at_the_end(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path / "a")
    folder.begin(BEGUN, SUMS)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    del modes[".lock"]  # it is empty
    assert modes == {"a": 0o700, SESSION: 0o600, SUMMAND: 0o600}
    with folder.locked():
        folder.end()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [".lock"]


def test_a_folder_that_others_could_read_is_closed(tmp_path: Path) -> None:
    """Such as one that was copied from elsewhere."""
    tmp_path.chmod(0o755)
    SessionFolder(tmp_path).begin(BEGUN, SUMS)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_whom_a_round_was_unmasked_for_outlives_sessions_and_is_the_owners(tmp_path: Path) -> None:
    rounds, sessions = UnmaskedRounds(tmp_path / "a"), SessionFolder(tmp_path / "b")
    assert rounds.of(3, "here", "study") == ()
    for t, survivors in ((3, (0, 2)), (4, (0, 2, 5)), (3, (2, 5))):
        sessions.begin(BEGUN, SUMS)
        with sessions.locked(), rounds.locked():
            rounds.claim(t, "here", survivors)
            sessions.end()
        assert rounds.of(t, "here", "study") == survivors
    assert stat.S_IMODE((tmp_path / "a" / UNMASKED).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert [UnmaskedRounds(tmp_path / "a").of(t, "here", "study") for t in (3, 4, 5)] == [(2, 5), (0, 2, 5), ()]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", '{"3": 7}', '{"3": [1, 2]}', '{"3": ["here", []]}', '{"3": ["here", ["1"]]}', '{"3": [7, [1]]}',
     '{"3": ["here", [true]]}', '{"3": ["here", [1]'],
)  # fmt: skip
def test_damage_to_it_is_one_line_and_not_a_permission(text: str, tmp_path: Path) -> None:
    write_as_ours(tmp_path / UNMASKED, text)
    with pytest.raises(InputError, match=UNMASKED):
        UnmaskedRounds(tmp_path).of(3, "here", "study")


def test_a_record_of_unmasked_rounds_that_is_gone_is_no_permission(tmp_path: Path) -> None:
    """A round could be unmasked a second time, for others; the difference of both sums is what one client sent."""
    rounds = UnmaskedRounds(tmp_path / "a")
    with rounds.locked():
        pass
    (tmp_path / "a" / UNMASKED).unlink()
    with pytest.raises(InputError, match=r"unmasked\.json is missing"):
        rounds.of(3, "here", "study")
    with rounds.locked(), pytest.raises(InputError, match=r"unmasked\.json is missing"):
        rounds.claim(3, "here", (0, 2))


def test_a_session_does_not_begin_while_another_process_is_in_a_step(tmp_path: Path) -> None:
    """That one would write the old session over the new one, and mask twice with the same masks."""
    folder = SessionFolder(tmp_path)
    folder.begin(BEGUN, SUMS)
    with folder.locked(), pytest.raises(InputError, match="is in use by another process"):
        folder.begin(replace(BEGUN, name="new"), SUMS)
    assert replace(folder.load("s"), sums_digest=BEGUN.sums_digest) == BEGUN


def test_a_session_that_has_ended_does_not_come_back_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is flushed when both names are gone from it."""
    folder, flushed = SessionFolder(tmp_path), list[tuple[Path, list[str]]]()
    folder.begin(BEGUN, SUMS)
    monkeypatch.setattr(operating_system, "_sync", lambda path, flags: flushed.append((path, sorted(os.listdir(path)))))
    folder.end()
    assert flushed == [(tmp_path, [LOCK])]


def test_a_session_that_is_over_is_refused(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path / "a")
    with pytest.raises(InputError, match="there is no session of a secure sum"), folder.locked():
        pass
    folder.begin(BEGUN, SUMS)
    with pytest.raises(RefusedError, match="this session of a secure sum is over"):
        folder.load("another")
    folder.end()
    with pytest.raises(RefusedError, match="this session of a secure sum is over"):
        folder.load("s")


def test_two_steps_at_once_are_refused(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path / "a")
    folder.begin(BEGUN, SUMS)
    with folder.locked(), pytest.raises(InputError, match="is in use by another process"), folder.locked():
        pass


WRITTEN = json.dumps(STORED_SESSION.dump_python(BEGUN, mode="json"))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"name": "s"}', WRITTEN.replace('"number": 2', '"number": "2"'),
             WRITTEN.replace("6363", "zz"), WRITTEN.replace('"about"', '"more"')],
)  # fmt: skip
def test_a_damaged_session_is_one_line(text: str, tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.begin(BEGUN, SUMS)
    write_as_ours(tmp_path / SESSION, text)
    with pytest.raises(InputError, match=SESSION) as e:
        folder.load("s")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("content", [b"", b"x" * 90, b"x" * 2**17])
def test_damaged_sums_are_one_line(content: bytes, tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.begin(BEGUN, SUMS)
    (tmp_path / SUMMAND).write_bytes(content)
    with pytest.raises(InputError, match=SUMMAND):
        folder.summand(folder.load("s"))
