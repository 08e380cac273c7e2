"""Rows of a trial of this version, written as JSON and compared with those of another version."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def write_rows(about: str | None, rows: Iterable[Sequence[Any]]) -> tuple[list[Sequence[Any]], list[Any] | None]:
    """Write `rows` to the file that the command line names; return them and, if it names one, those of a file before.

    about: the description for `--help`.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the rows")
    parser.add_argument("--before", type=Path, help="such a file of another version, to compare with")
    given = parser.parse_args()
    found = list(rows)
    before = json.loads(given.before.read_text()) if given.before else None
    given.out.write_text(json.dumps(found, indent=0) + "\n")
    return found, before
