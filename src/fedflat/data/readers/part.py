"""What every reader gives: the train or test part of a set, labels at once, samples one after another."""

from __future__ import annotations

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...core.errors import InputError, imported_errors, printable
from ..federated import Index

SHOWN = 200  # characters of a file's own words that a message repeats
# What libraries raise for hostile content: RuntimeError is that of an encrypted zip and of content nested too deep.
PARSING = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
           MemoryError, zlib.error, struct.error, tarfile.TarError, zipfile.BadZipFile)  # fmt: skip


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
    """What an error of another library says, without line breaks, and not all of it if that is long."""
    return printable(" ".join(str(error)[: 2 * SHOWN].split())[:SHOWN]) or type(error).__name__


def listed(names: Iterable[str]) -> str:
    """Names that a file gives, for a message: printable, and not all if there are many."""
    text = ", ".join(names)
    return printable(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...")


def refusal(file: str, problem: str) -> InputError:
    """The error, in one printable line, that names a data file and what is wrong with it."""
    return InputError(printable(f"data file {file}: {problem}"))


def expect(condition: bool, file: str, problem: str) -> None:
    """Raise InputError, naming the file, unless `condition` holds."""
    if not condition:
        raise refusal(file, problem)


@contextmanager
def parsing(file: str, problem: str = "truncated or damaged") -> Iterator[None]:
    """Whatever a library raises inside, for content that is not what it should be, becomes InputError naming `file`."""
    try:
        yield
    except InputError:
        raise
    except imported_errors(*PARSING, "pyarrow:ArrowException") as error:
        raise refusal(file, f"{problem} ({in_one_line(error)})") from error
