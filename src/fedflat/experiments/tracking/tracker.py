"""What a tool for following runs has to do, and what it is told of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...core.errors import InputError
from ...rounds.checksums import read_checked, write_checked
from ..run_directory import RunDirectory
from ..spec import RunSpec

STATE = "tracking.json"


@dataclass(frozen=True)
class TrackedRun:
    """A run that is written to a tool."""

    spec: RunSpec
    directory: RunDirectory
    root: Path  # the folder of the run, or of the study that it belongs to

    def kept_name(self, tool: str) -> str:
        """A name that no other run of the study has; it is kept, and stays when the run gets more rounds."""
        kept = self.state(tool).get("digest")
        digest = kept if isinstance(kept, str) and kept.isalnum() else self.spec.digest()
        self.keep(tool, {"digest": digest})
        return f"{self.spec.label}-{digest}"

    def settings(self) -> dict[str, Any]:
        """The configuration with dotted keys, such as `client.lr`."""
        return dict(_dotted(self.spec.table()))

    def state(self, tool: str) -> dict[str, Any]:
        """What a tracker has kept with `keep` in the run's folder. Raises InputError for a file of another kind."""
        return dict(kept_states(self.directory.path).get(tool) or {})

    def keep(self, tool: str, state: Mapping[str, Any]) -> None:
        """Keep what a tracker must know when the run is resumed."""
        write_checked(self.directory.path / STATE, kept_states(self.directory.path) | {tool: dict(state)})


def kept_states(folder: Path) -> dict[str, Any]:
    """What the trackers of a run have kept in its folder, by tool. Raises InputError if the file is damaged."""
    path = folder / STATE
    try:
        content = read_checked(path) if path.exists() else {}
        if isinstance(content, dict) and all(isinstance(one, dict) for one in content.values()):
            return content
        raise InputError(f"{path} is not what fedflat wrote")
    except InputError as error:
        raise InputError(f"{error}; remove it, and the run is tracked from its beginning") from error


def _dotted(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


class Tracker(ABC):
    """One run in one tool. A step is the number of a round, from 0; steps are written in rising order and once."""

    package: ClassVar[str] = ""  # what it imports
    extra: ClassVar[str] = ""  # of fedflat, that installs it

    def __init__(self, run: TrackedRun) -> None:
        """Begin, or go on with, the run."""
        self.run = run

    @property
    @abstractmethod
    def next_step(self) -> int:
        """The first step that is not there yet; those before are not written again."""

    @abstractmethod
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a round."""

    @abstractmethod
    def finish(self, summary: Mapping[str, float]) -> None:
        """Write the summary of the finished run."""

    def close(self) -> None:  # noqa: B027 (not every tool has something to close)
        """Write what is still in memory; the run may be resumed later."""
