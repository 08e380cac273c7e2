"""Printing for the command line, and the end of a failed command: one line and an exit code.

Texts may come from users, files and networks: none is read as rich's markup, and control characters are escaped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

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

from ..core.errors import InputError, NonFiniteError, imported_errors, is_first_rank, shortened
from ..core.progress import Progress as ProgressCallback
from ..experiments.interrupt import Interrupted
from ..reports.text_table import literal

WIDE = 190  # characters of a line in a file or a pipe
FAILED = 1  # the work failed
REFUSED = 2  # the input or the system does not allow the work; also for usage errors
STOPPED = 130  # by a second Ctrl-C
READER_ENDED = 128 + 13  # SIGPIPE, which Windows has not
FAILURES = (
    NonFiniteError,
    "fedflat.engine.ranks:RankError",
    "fedflat.engine.workers:WorkerError",
    "fedflat.federation.membership:FederationError",
)
REFUSALS = (
    InputError,
    OSError,
    MemoryError,
    RecursionError,
    "safetensors:SafetensorError",
    "pyarrow:ArrowException",
    "pydantic:ValidationError",
)
LONGEST = 2000  # characters of an error message
MEMORY = (
    "memory is short: use smaller batches (client.batch_size), fewer runs at a time (--jobs), "
    "executor = 'sequential', a smaller store_megabytes, or a smaller model"
)


class Console(rich.console.Console):
    """A terminal, file or pipe to print lines and tables to."""

    def say(self, *lines: str, style: str = "") -> None:
        """Print each of `lines` on its own line; a line feed inside a line is escaped."""
        for line in lines:
            self.print(literal(line, style), soft_wrap=True)

    def caution(self, about: str, text: str) -> None:
        """Print one line that begins with its subject `about`, in yellow."""
        self.print(Text.assemble(literal(about, "yellow"), " ", literal(text)), soft_wrap=True)

    def show(self, *tables: Table) -> None:
        """Print tables; in a file or a pipe, lines have space for `WIDE` characters.

        All cells have to be made by `literal`, so that they are not read as markup.
        """
        width = max(self.width, WIDE)
        wide = self if self.is_terminal else Console(file=self.file, width=width, quiet=self.quiet)
        for table in tables:
            wide.print(table)

    def doing(self, what: str = "") -> Status:
        """Show a spinner and the text `what` while the block runs."""
        return self.status(literal(what))

    @contextmanager
    def bars(self, before: str = "", counted: bool = False) -> Iterator[ProgressCallback]:
        """Show a bar for each part of a computation while the block runs; yield the callback that moves the bars.

        Bars are only shown on a terminal.

        before: text before the name of a part. counted: also show the number of steps done.
        """
        columns = [Described(), *Progress.get_default_columns()[1:], *[MofNCompleteColumn()] * counted]
        with Progress(*columns, console=self, transient=True, disable=not self.is_terminal) as progress:
            tasks: dict[str, TaskID] = {}

            def advance(part: str, done: int, total: int) -> None:
                if part not in tasks:
                    tasks[part] = progress.add_task(f"{before}{part}", total=total)
                progress.update(tasks[part], completed=done, total=total)

            yield advance

    def on_broken_pipe(self) -> None:
        """End silently: the program that reads the output has ended."""
        end_silently()


def end_silently() -> NoReturn:
    """End the program silently with the exit code of SIGPIPE: the reader of its output, such as `head`, has ended."""
    with suppress(OSError, ValueError):  # a stream without a file has nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(READER_ENDED)


class Described(ProgressColumn):
    """The column of a progress bar that shows a task's description."""

    def render(self, task: Task) -> Text:
        return literal(task.description)


def counting_columns(unit: str) -> tuple[ProgressColumn, ...]:
    """Return the columns of a progress bar: bar, number of `unit` done, elapsed time, time left, and description."""
    counted = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    return *counted, TextColumn("left"), TimeRemainingColumn(), Described()


@contextmanager
def in_one_line() -> Iterator[None]:
    """Print one line and exit with a non-zero code if the block raises an error that is not a bug of fedflat."""
    try:
        yield
    except BrokenPipeError:
        end_silently()
    except Interrupted as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("stopped at once", STOPPED)
    except imported_errors("click.exceptions:NoArgsIsHelpError"):  # the help is already printed
        sys.exit(REFUSED)
    except imported_errors("click:UsageError") as error:
        _end(_usage(error), REFUSED)
    except imported_errors(*FAILURES) as error:
        _end(str(error), FAILED)
    except imported_errors(*REFUSALS) as error:
        _end(_message(error), REFUSED)
    except RuntimeError as error:  # torch could not allocate memory; on the CPU only the message shows it
        on_gpu = isinstance(error, imported_errors("torch:OutOfMemoryError"))
        if not on_gpu and "DefaultCPUAllocator: can't allocate memory" not in str(error):
            raise
        _end(MEMORY, REFUSED)


def _message(error: Exception) -> str:
    """Return the message that a user reads about `error`."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, RecursionError):
        return "the input is nested too deep"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _usage(error: Any) -> str:
    """Return the message of an error in the arguments of a command, and the command that shows its help."""
    said = re.split(r"(?<=[.?]) ", error.format_message().strip().removesuffix(".").replace("\n", " "))
    message = " ".join(dict.fromkeys(said))  # some versions of typer and of click each add the same suggestion
    return f"{message}; see `{error.ctx.command_path} --help`" if error.ctx else message


def _end(message: str, code: int) -> NoReturn:
    """End the program with one line; if all ranks fail together, only the first rank prints the line."""
    Console(stderr=True, quiet=not is_first_rank()).say(f"fedflat: {shortened(message, LONGEST)}")
    sys.exit(code)
