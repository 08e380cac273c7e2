"""How a command ends when it cannot go on: one line on standard error, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ..core.errors import InputError, NonFiniteError, imported_errors, shortened
from ..experiments.change_warnings import is_first_rank
from ..experiments.interrupt import Interrupted
from .console import Console, end_silently

FAILED = 1  # the work failed
REFUSED = 2  # the input or the system does not allow the work; as usage errors
STOPPED = 130  # by a second Ctrl-C
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
LONGEST = 2000  # characters of the line
MEMORY = (
    "memory is short: take smaller batches (client.batch_size), fewer runs at a time (--jobs), "
    "executor = 'sequential', a smaller store_megabytes, or a smaller model"
)


@contextmanager
def in_one_line() -> Iterator[None]:
    """End the program with one line and a code, 1 or 2, for every error that is not a mistake of fedflat's own."""
    try:
        yield
    except BrokenPipeError:
        end_silently()
    except Interrupted as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("stopped at once", STOPPED)
    except imported_errors("click.exceptions:NoArgsIsHelpError"):  # who makes it prints the help
        sys.exit(REFUSED)
    except imported_errors("click:UsageError") as error:
        _end(_usage(error), REFUSED)
    except imported_errors(*FAILURES) as error:
        _end(str(error), FAILED)
    except imported_errors(*REFUSALS) as error:
        _end(_message(error), REFUSED)
    except RuntimeError as error:  # if torch could not get memory; on the CPU only the message says so
        on_gpu = isinstance(error, imported_errors("torch:OutOfMemoryError"))
        if not on_gpu and "DefaultCPUAllocator: can't allocate memory" not in str(error):
            raise
        _end(MEMORY, REFUSED)


def _message(error: Exception) -> str:
    """What is wrong, in words for a user."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, MemoryError):
        return MEMORY
    if isinstance(error, RecursionError):
        return "what was given is nested too deep"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _usage(error: Any) -> str:
    """Say what is wrong with the words of a command line, and where the right ones are listed."""
    message = error.format_message().strip().removesuffix(".").replace("\n", " ")
    return f"{message}; see `{error.ctx.command_path} --help`" if error.ctx else message


def _end(message: str, code: int) -> NoReturn:
    """End with one line; of several ranks, which fail together, only the first one prints it."""
    Console(stderr=True, quiet=not is_first_rank()).say(f"fedflat: {shortened(message, LONGEST)}")
    sys.exit(code)
