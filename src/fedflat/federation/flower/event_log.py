"""The log of a federation: each line is a JSON object with the SHA-256 of all lines before it, and its own checksum.

So a line that is changed, removed, inserted or moved is detected. Lines that are missing at the end are detected if a
checkpoint has the head (length and digest) of the longer log. Whoever can write to the folder can replace the log by a
new one; only a head that is stored elsewhere reveals this.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.errors import InputError, printable
from ...files import flush_folder, system_errors

log = logging.getLogger("flwr")
EVENTS = "events.jsonl"  # the events of the federation, for people and programs that follow it
LINE, PREVIOUS = "line", "previous"  # the number of a line, and the SHA-256 of all bytes before it
CHECK = "check"  # 16 digits of the SHA-256 of the line without this key; only this protects the last line
HEAD = "log"  # key of the log's head in checkpoints and in the result


@dataclass(frozen=True)
class LogHead:
    """The length of a log and its digest."""

    lines: int
    sha256: str  # of the bytes of all lines: `head -n LINES events.jsonl | sha256sum`


def head_in(facts: Mapping[str, Any], where: Path) -> LogHead:
    """Return the log head stored in a checkpoint or result. Raises InputError, naming the file, if it is malformed."""
    try:
        return LogHead(int(facts[HEAD]["lines"]), str(facts[HEAD]["sha256"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {HEAD} is not the head of a log") from error


class EventLog:
    """Appends events to a file and to Flower's log. The caller must hold the lock of the folder."""

    def __init__(self, folder: Path, study: str = "") -> None:
        """Open the log in `folder`. study: the study's digest, which the first line of a new log has as `PREVIOUS`."""
        self._path, self._study = folder / EVENTS, study
        self._open()

    def _open(self) -> None:
        """Open the log for appending; end an incomplete last line with a newline."""
        content = self._path.read_bytes() if self._path.exists() else b""
        if content and not content.endswith(b"\n"):
            content += b"\n"
            with self._path.open("ab") as file:
                file.write(b"\n")
        self._lines, self._before = content.count(b"\n"), hashlib.sha256(content)

    @property
    def head(self) -> LogHead:
        """The number of lines, and the SHA-256 of their bytes."""
        return LogHead(self._lines, self._before.hexdigest())

    def append(self, event: str, **facts: Any) -> None:
        """Append an event, such as "round", and flush it to disk.

        facts: further keys of the line; values must be convertible to JSON. Raises InputError if writing fails.
        """
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        line |= {LINE: self._lines + 1, PREVIOUS: self._before.hexdigest() if self._lines else self._study}
        content = (json.dumps(line | {CHECK: _check_of(line)}) + "\n").encode()
        try:
            with system_errors(self._path, "written"):
                self._write(content)
        except InputError:
            with suppress(OSError):  # part of the line may have been written
                self._open()
            raise
        self._lines += 1
        self._before.update(content)
        log.info("fedflat: %s", printable(" ".join([event, *(f"{key}={value}" for key, value in facts.items())])))

    def _write(self, content: bytes) -> None:
        is_new = not self._path.exists()
        with self._path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            flush_folder(self._path.parent)


def read_events(folder: Path, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events in a federation's folder after the first `after` lines, without line numbers and hashes.

    Incomplete lines are skipped.
    """
    path = folder / EVENTS
    for line in path.read_bytes().split(b"\n")[after:] if path.exists() else ():
        event = _parsed(line)
        if event is not None:
            yield {key: value for key, value in event.items() if key not in (LINE, PREVIOUS, CHECK)}


def check_log(path: Path, heads: Mapping[str, LogHead], study: str | None = None) -> LogHead:
    """Check the hashes of every line, and that the log agrees with earlier `heads`; return its current head.

    heads: heads that were stored earlier, by the name of the file that has each one. study: the digest of the study;
    None: not checked. Raises InputError, naming the first line that is wrong.
    """
    before = hashlib.sha256()
    ends = [before.hexdigest()]  # ends[n] is the SHA-256 of the first n lines
    with system_errors(path, "read"), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            event, where = _checked(line, f"{path}: line {number}"), f"{path}: line {number}"
            if event:
                is_as_written = line.removesuffix(b"\n") == json.dumps(event).encode()  # also its white space
                if not is_as_written or event.get(CHECK) != _check_of(event):
                    raise InputError(f"{where} is not as it was written")
                _check_place(event, number, ends[-1] if number > 1 else study, where)
            before.update(line)
            ends.append(before.hexdigest())
    for name, head in heads.items():
        if head.lines >= len(ends):
            raise InputError(f"{path}: the end is missing: it has {len(ends) - 1} lines, {name} knows of {head.lines}")
        if head.sha256 != ends[head.lines]:
            raise InputError(f"{path}: the first {head.lines} lines are not those that {name} knows of")
    return LogHead(len(ends) - 1, ends[-1])


def _check_of(event: Mapping[str, Any]) -> str:
    """Return the checksum of one line. It detects accidents, not attacks: an attacker can compute it, too."""
    own = {key: value for key, value in event.items() if key != CHECK}
    return hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]


def _check_place(event: Mapping[str, Any], number: int, before: str | None, where: str) -> None:
    """Raise InputError unless the event in line `number` has this number, and `before` as the hash of previous lines.

    before: the expected SHA-256; in the first line, the study's digest. None: not checked. where: for error messages.
    """
    if event.get(LINE) != number:
        raise InputError(f"{where} was line {str(event.get(LINE))[:20]}: lines were removed, inserted or moved")
    if before is None or event.get(PREVIOUS) == before:
        return
    if number == 1:
        raise InputError(f"{where} begins the log of another study")
    raise InputError(f"{where} does not follow line {number - 1} as it is now: one of the two was changed")


def _checked(line: bytes, where: str) -> dict[str, Any]:
    """Return the event in a line; empty if a crash cut the line short. Raises InputError for any other content."""
    event = _parsed(line)
    if event is None and not (line.startswith(b"{") and not line.endswith(b"}\n")):
        raise InputError(f"{where} is not an event")
    return event or {}


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the event in a line; None if the line holds no event."""
    with suppress(ValueError, RecursionError):
        event = json.loads(line)
        if isinstance(event, dict) and {"time", "event"} <= event.keys():
            return event
    return None
