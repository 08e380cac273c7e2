"""What every reader gives: the train or test part of a set, labels at once, samples one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...core.errors import InputError
from ..federated import Index


@dataclass(frozen=True)
class Part:
    """One part of a set, as its files have it."""

    labels: Index  # (n,) class indices
    samples: Iterable[Any]  # n pictures, uint8 (channels, height, width), or n texts, in the order of the labels
    domain: Sequence[str] | None = None  # of each sample
    user: Sequence[str] | None = None  # who each sample is from


@dataclass(frozen=True)
class Shape:
    """The pictures that a set has, whatever its files hold."""

    channels: int
    size: int  # height and width in pixels
    resize: bool = False  # photographs of any size: shorter side to size * 8 / 7, then the central square


class Layout(Protocol):
    """Files that a set may come in."""

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        """The parts `train` and `test` found in `folder`, or None if these are not its files.

        `shape` is that of pictures, None for texts. Raises InputError, naming the file, for damaged ones.
        """

    def __str__(self) -> str:
        """What to look for, e.g. `train-*.parquet`."""


def in_one_line(error: Exception) -> str:
    """What an error of another library says, without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def expect(condition: bool, file: str, problem: str) -> None:
    """Raise InputError, naming the file, unless `condition` holds."""
    if not condition:
        raise InputError(f"data file {file}: {problem}")
