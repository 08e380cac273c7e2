"""Errors of data files: one printable line that names the file and the problem."""

from __future__ import annotations

import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ...core.errors import InputError, printable

SHOWN = 200  # characters of a file's own text that a message repeats
# What libraries raise for hostile content: RuntimeError comes from an encrypted zip and from content nested too deep.
PARSING_ERRORS = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError,
                  MemoryError, zlib.error, struct.error, tarfile.TarError, zipfile.BadZipFile)  # fmt: skip


def file_error(file: str, problem: str) -> InputError:
    """The error, in one printable line, that names a data file and its problem."""
    return InputError(printable(f"data file {file}: {problem}"))


def expect(condition: bool, file: str, problem: str) -> None:
    """Raise InputError, naming the file, unless `condition` holds."""
    if not condition:
        raise file_error(file, problem)


@contextmanager
def parsing(file: str, problem: str = "truncated or damaged") -> Iterator[None]:
    """Turn what libraries raise for content that they cannot parse into InputError that names `file`."""
    try:
        yield
    except InputError:
        raise
    except _parsing_errors() as error:
        raise file_error(file, f"{problem} ({in_one_line(error)})") from error


def _parsing_errors() -> tuple[type[Exception], ...]:
    """With pyarrow's, if pyarrow is imported; its import takes half a second, which other layouts need not wait for."""
    pyarrow = sys.modules.get("pyarrow")
    return PARSING_ERRORS if pyarrow is None else (*PARSING_ERRORS, pyarrow.ArrowException)


def in_one_line(error: Exception) -> str:
    """The message of another library's error, printable, without line breaks, cut if it is long."""
    return printable(" ".join(str(error)[: 2 * SHOWN].split())[:SHOWN]) or type(error).__name__


def listed(names: Iterable[str]) -> str:
    """Names that a file contains, for a message: printable, and cut if there are many."""
    text = ", ".join(names)
    return printable(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...")
