"""The events of a federation, one JSON object a line, for people and for programs that follow it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.errors import printable
from ...files import system_errors

log = logging.getLogger("flwr")
FILE = "events.jsonl"


class EventLog:
    """Appends events to a file and to Flower's log."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a") as file:
                file.write("\n")  # ends a line that was being written when the machine stopped

    def append(self, event: str, **facts: Any) -> None:
        """Append an event, such as "round", with its JSON-able facts."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        with system_errors(self._path, "written"), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        log.info("fedflat: %s", printable(" ".join([event, *(f"{key}={value}" for key, value in facts.items())])))


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The events in a federation's folder so far; a line that is not complete is skipped."""
    path = folder / FILE
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)
