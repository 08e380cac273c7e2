"""What a reader is and what it gives: the train or test part of a data set, labels at once, samples one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

CHANNELS = (1, 3, 4)  # of pictures in arrays


@dataclass(frozen=True)
class Part:
    """The train or test part of a data set, as its files hold it."""

    labels: NDArray[Any]  # (n,) class indices; of a user's own also texts (n,), and numbers (n,) or (n, k)
    samples: Iterable[Any]  # n pictures, uint8 (channels, height, width), or n texts, in the order of the labels
    domain: Sequence[str | int] | None = None  # name or number of the domain of each sample
    user: Sequence[str | int] | None = None  # name or number of the user of each sample
    class_names: tuple[str, ...] = ()  # of the class indices, if the files declare them


@dataclass(frozen=True)
class Shape:
    """The shape of a data set's pictures: that of its definition, or else of its first picture."""

    channels: int
    size: int  # height and width in pixels
    resize: bool = False  # photographs of any size: shorter side to size * 8 / 7, then the central square
    first: str = ""  # the first picture, for messages: the others have to be like it; empty: others are converted


class Layout(Protocol):
    """One arrangement of files that a data set may come in."""

    def parts(self, folder: Path, shape: Shape | None) -> dict[str, Part] | None:
        """The parts `train` and `test` found in `folder`, or None if its files have another layout.

        `shape` is that of pictures, None for texts. Raises InputError, naming the file, for damaged ones.
        """

    def __str__(self) -> str:
        """The files to look for, e.g. `train-*.parquet`."""
