"""Logs of a federation's programs as JSON lines, if the variable FEDFLAT_LOG_FORMAT of their environment is json.

Flower's loggers have handlers with formats of their own, and Flower changes handlers while it runs. All of them end in
`logging.Formatter.format`, so this function is replaced. Flower starts its own programs for apps; `launcher` makes them
start by this module, which replaces the function there, too.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from ...core.errors import InputError

VARIABLE = "FEDFLAT_LOG_FORMAT"
FORMATS = ("text", "json")
log = logging.getLogger("fedflat")


def json_line(record: logging.LogRecord) -> str:
    """Return a log record as one line of JSON: time in UTC, level, logger, message and, if there is one, exception.

    Control characters in texts are escaped, so that no text begins a line.
    """
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
    if record.exc_info and record.exc_info[1]:
        line["exception"] = logging.Formatter().formatException(record.exc_info)
    return json.dumps(line)


def is_asked() -> bool:
    """Return whether logs are JSON lines. Raises InputError for another value of the variable than the `FORMATS`."""
    value = os.environ.get(VARIABLE) or FORMATS[0]
    if value not in FORMATS:
        raise InputError(f"{VARIABLE} is {value[:40]!r}, expected {' or '.join(FORMATS)}")
    return value == "json"


def set_up_logs() -> None:
    """Let this process log JSON lines if they are asked for: log records, warnings and errors that end a thread.

    Raises InputError for a wrong value of the variable.
    """
    if not is_asked():
        return
    logging.Formatter.format = lambda self, record: json_line(record)  # type: ignore[method-assign]
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").addHandler(logging.StreamHandler())
    sys.excepthook = _log_error
    threading.excepthook = lambda end: _log_error(end.exc_type, end.exc_value, end.exc_traceback)


def _log_error(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    """Log the error that ends a thread or the process."""
    log.critical("ended by an error", exc_info=(kind, error or kind(), traceback))


def launcher(program: str) -> list[str]:
    """Return the words that precede the path of one of Flower's programs, so that it logs JSON lines if asked for."""
    return [sys.executable, "-m", __name__] if is_asked() and Path(program).is_file() else []


def main() -> None:
    """Run the Python script in the first argument with the others."""
    set_up_logs()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
