"""The log's chain of hashes: whatever is done to a line is found and named, and what a chain cannot know is said."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedflat.core.errors import InputError
from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.federation.flower.event_log import EVENTS, EventLog, LogHead, check_log, read_events
from support.flower_fixtures import GridFederation, failing, study_of

STUDY = "0123456789abcdef"
events = st.lists(st.dictionaries(st.sampled_from(["client", "reason", "missing"]), st.text(max_size=9)), min_size=3)
few = settings(max_examples=20)  # each line is brought to the disk, which takes some milliseconds


def written(folder: Path, facts: list[dict[str, str]]) -> tuple[Path, LogHead]:
    """A log of so many events, and its head."""
    log = EventLog(folder, STUDY)
    for one in facts:
        log.append("round", **one)
    return folder / EVENTS, log.head


def sha256_of(lines: list[bytes]) -> str:
    return hashlib.sha256(b"".join(lines)).hexdigest()


def problem(path: Path, heads: dict[str, LogHead] | None = None) -> str:
    with pytest.raises(InputError) as caught:
        check_log(path, heads or {}, STUDY)
    return str(caught.value)


def lines_named(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"line (\d+)", text)}


@few
@given(events, st.data())
def test_a_log_that_nobody_touched_is_whole_however_often_it_was_opened(facts, data) -> None:
    """Each line has the SHA-256 of the bytes before it, as `sha256sum` has it; torn lines of crashes are no damage."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / EVENTS
        for one in facts:
            EventLog(Path(folder), STUDY).append("round", **one)
            if data.draw(st.booleans()):
                with path.open("ab") as file:
                    file.write(b'{"time": "2026-01-0')
        head = EventLog(Path(folder), STUDY).head
        lines = path.read_bytes().splitlines(keepends=True)
        assert check_log(path, {"a checkpoint": head}, STUDY) == head == LogHead(len(lines), sha256_of(lines))
        for number, line in enumerate(lines[1:], start=2):
            if line.endswith(b"}\n"):
                assert json.loads(line)["previous"] == sha256_of(lines[: number - 1])
        assert json.loads(lines[0])["previous"] == STUDY
        assert [set(one) - {"time", "event"} for one in read_events(Path(folder))] == [set(one) for one in facts]


@few
@given(events, st.data())
def test_a_changed_byte_is_found_and_its_line_is_named(facts, data) -> None:
    with TemporaryDirectory() as folder:
        path, head = written(Path(folder), facts)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        changed = 1 + content[:place].count(b"\n")
        content[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        found = problem(path, {"round-000001.safetensors": head})
        if changed < len(facts):
            assert lines_named(found) & {changed, changed + 1}, found


@few
@given(events, st.data())
def test_a_changed_byte_of_the_last_line_is_found_without_any_head(facts, data) -> None:
    """Unless its end is changed, as a line that a crash has torn: that one counts for nothing."""
    with TemporaryDirectory() as folder:
        path, _ = written(Path(folder), facts)
        content = bytearray(path.read_bytes())
        start = content[:-1].rindex(b"\n") + 1
        content[data.draw(st.integers(start, len(content) - 3))] ^= data.draw(st.integers(1, 127))
        path.write_bytes(content)
        # A byte that becomes a line break leaves a torn line, which may be a crash's, and a line that is no event.
        last = {len(facts), len(facts) + 1} if content[start:-1].count(b"\n") else {len(facts)}
        assert lines_named(problem(path)) & last


@pytest.mark.parametrize("other", [b"\t", b"\r", b"\n"])
def test_other_white_space_between_the_same_facts_is_found(tmp_path: Path, other: bytes) -> None:
    path, _ = written(tmp_path, [{"client": "a"}])
    path.write_bytes(path.read_bytes().replace(b", ", b"," + other, 1))
    assert lines_named(problem(path)) & {1, 2}


def test_who_computes_the_check_of_a_changed_line_anew_is_found_by_the_next_line(tmp_path: Path) -> None:
    path, _ = written(tmp_path, [{"client": "a"}, {"client": "b"}, {"client": "c"}])
    lines = path.read_bytes().splitlines(keepends=True)
    changed = json.loads(lines[1]) | {"client": "z"}
    del changed["check"]
    changed["check"] = hashlib.sha256(json.dumps(changed).encode()).hexdigest()[:16]
    lines[1] = json.dumps(changed).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    assert "line 3 does not follow line 2 as it is now: one of the two was changed" in problem(path)


@few
@given(events, st.data())
def test_a_line_that_is_removed_inserted_or_moved_is_found_without_any_head(facts, data) -> None:
    with TemporaryDirectory() as folder:
        path, _ = written(Path(folder), facts)
        lines = path.read_bytes().splitlines(keepends=True)
        place = data.draw(st.integers(0, len(lines) - 2))
        other = data.draw(st.integers(0, len(lines) - 1).filter(lambda j: j != place))
        how = data.draw(st.sampled_from(["removed", "repeated", "swapped", "invented"]))
        if how == "removed":
            del lines[place]
        elif how == "repeated":
            lines.insert(place + 1, lines[other])
        elif how == "invented":
            lines.insert(place + 1, b'{"time": "now", "event": "round"}\n')
        else:
            lines[place], lines[other] = lines[other], lines[place]
        path.write_bytes(b"".join(lines))
        first = min(place, other) + 1 if how == "swapped" else place + (1 if how == "removed" else 2)
        assert min(lines_named(problem(path))) <= first + 1
        assert max(lines_named(problem(path))) >= first
        if how == "removed":
            assert f"line {first} was line {first + 1}: lines were removed, inserted or moved" in problem(path)


@few
@given(events, st.data())
def test_an_end_that_is_cut_off_is_found_by_who_knows_of_it_and_by_nobody_else(facts, data) -> None:
    with TemporaryDirectory() as folder:
        path, head = written(Path(folder), facts)
        left = data.draw(st.integers(0, len(facts) - 1))
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:left]))
        check_log(path, {}, STUDY)
        found = problem(path, {"result.json": head})
        assert f"the end is missing: it has {left} lines, result.json knows of {len(facts)}" in found


def test_a_log_that_is_written_anew_is_found_by_a_head_that_was_kept_and_by_nothing_else(tmp_path: Path) -> None:
    """What the chain does not protect against: whoever can write the file can make another chain."""
    path, head = written(tmp_path, [{"client": "a"}, {"client": "b"}, {"client": "c"}])
    path.unlink()
    written(tmp_path, [{"client": "a"}, {"client": "somebody else"}, {"client": "c"}])
    check_log(path, {}, STUDY)
    assert "the first 3 lines are not those that round-000002.safetensors knows of" in problem(
        path, {"round-000002.safetensors": head}
    )


def test_the_log_of_another_study_is_found(tmp_path: Path) -> None:
    path, _ = written(tmp_path, [{}, {}])
    with failing(InputError, "line 1 begins the log of another study"):
        check_log(path, {}, "fedcba9876543210")


def test_a_line_without_a_hash_is_found_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    path.write_bytes(b'{"time": "2026-01-01", "event": "begun"}\n')
    written(tmp_path, [{"client": "a"}])
    assert "line 1 is not as it was written" in problem(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> GridFederation:
    federation = GridFederation(study_of(rounds=4), tmp_path_factory.mktemp("federation"))
    federation.serve()
    return federation


def copied(finished: GridFederation, folder: Path) -> GridFederation:
    shutil.copytree(finished.folder, folder, dirs_exist_ok=True)
    return GridFederation(study_of(rounds=4), folder)


def test_checkpoints_and_the_result_have_the_head_of_the_log(finished: GridFederation, tmp_path: Path) -> None:
    """Cut back to before the newest checkpoint, the log is shorter than what that knows."""
    federation = copied(finished, tmp_path)
    path = federation.out / EVENTS
    assert dict(check(federation.out))[EVENTS] == ""
    lines = path.read_bytes().splitlines(keepends=True)
    rounds = [number for number, line in enumerate(lines) if json.loads(line)["event"] == "round"]
    path.write_bytes(b"".join(lines[: rounds[-1] - 1]))
    assert "the end is missing" in dict(check(federation.out))[EVENTS]
    assert "round-000004.safetensors knows of" in dict(check(federation.out))[EVENTS]
    path.unlink()
    assert "cannot be read" in dict(check(federation.out))[EVENTS]


def test_a_federation_goes_on_with_a_changed_log_and_says_so_in_it(finished: GridFederation, tmp_path: Path) -> None:
    """The line stays wrong for everybody who checks later."""
    federation = copied(finished, tmp_path)
    FederationDirectory(federation.out).roll_back(3)
    path = federation.out / EVENTS
    path.write_bytes(path.read_bytes().replace(b'"client-1"', b'"client-9"', 1))
    federation.serve()
    [event] = federation.events("damaged log")
    found = dict(check(federation.out))[EVENTS]
    assert found == event["reason"]
    assert "is not as it was written" in found
    assert [one["event"] for one in read_events(federation.out)][-1] == "finished"
