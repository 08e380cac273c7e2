"""What a study and the processes of its runs tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Commission:
    """A run to carry out."""

    toml: str  # its configuration
    path: Path  # its folder
    strict: bool = False  # refuse to go on with other versions or another code


@dataclass(frozen=True)
class Event:
    """What a watcher is to be told: the name of its method, and what follows the run's configuration there."""

    name: str
    content: tuple[object, ...]


@dataclass(frozen=True)
class Ended:
    """The run is over: finished, stopped, or ended by an error."""

    error: Exception | None = None
