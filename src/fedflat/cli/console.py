"""The only place from which the command line prints.

Texts may come from users, files and networks. So no text is read as rich's markup, and control characters are printed
as escapes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import rich.console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from ..reports.literal import literal

WIDE = 190  # characters of a line in a file or a pipe


class Console(rich.console.Console):
    """A terminal, file or pipe to print lines and tables to."""

    def say(self, *lines: str, style: str = "") -> None:
        """Print each of `lines` on a line of its own; a line feed inside one of them is spelled out."""
        for line in lines:
            self.print(literal(line, style), soft_wrap=True)

    def caution(self, about: str, text: str) -> None:
        """Print one line that begins with what it is about, in yellow."""
        self.print(Text.assemble(literal(about, "yellow"), " ", literal(text)), soft_wrap=True)

    def show(self, *tables: Table) -> None:
        """Print tables whose cells are `literal`; a file or a pipe, which has no width, counts as wide."""
        width = max(self.width, WIDE)
        wide = self if self.is_terminal else Console(file=self.file, width=width, quiet=self.quiet)
        for table in tables:
            wide.print(table)

    def doing(self, what: str = "") -> Status:
        """Inside the block, show a spinner beside the text `what`."""
        return self.status(literal(what))

    def on_broken_pipe(self) -> None:
        """End silently: the program that reads the output has ended."""
        end_silently()


def end_silently() -> NoReturn:
    """End as other programs do when the reader of their output (`head`) has ended: no message, the code of SIGPIPE."""
    with suppress(OSError, ValueError):  # a stream without a file has nothing to be flushed at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)


class Described(ProgressColumn):
    """The column of a progress bar that shows a task's description."""

    def render(self, task: Task) -> Text:
        return literal(task.description)


def usual_columns() -> tuple[ProgressColumn | str, ...]:
    """The usual columns of a progress bar, the description first."""
    return Described(), *Progress.get_default_columns()[1:]


def counting_columns(unit: str) -> tuple[ProgressColumn, ...]:
    """A bar, how many of all `unit` are done, the time so far and the time left; the description last."""
    counted = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    return *counted, TextColumn("left"), TimeRemainingColumn(), Described()


def bar_for_each(progress: Progress, before: str) -> Callable[[str, int, int], None]:
    """A callback (part, done, total) that shows each part as a bar of its own; `before` stands before its name."""
    tasks: dict[str, TaskID] = {}

    def advance(part: str, done: int, total: int) -> None:
        if part not in tasks:
            tasks[part] = progress.add_task(f"{before}{part}", total=total)
        progress.update(tasks[part], completed=done, total=total)

    return advance
