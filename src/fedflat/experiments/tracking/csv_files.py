"""`--track csv`: metrics.csv and summary.csv in the folder of the run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...core.errors import InputError
from ...files import read_text, system_errors, write_atomically
from .tracker import TrackedRun, Tracker

MOST = 2**28  # bytes of a file that is gone on with


class CsvTracker(Tracker):
    """A row for each round, and a column for each metric; cells of rounds without it are empty."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self.path = run.directory.path / "metrics.csv"
        self.columns, self._rows = ["t"], 0
        self._read()

    @property
    def next_step(self) -> int:
        return self._rows

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {**metrics, "t": step}
        new = [name for name in row if name not in self.columns]
        if new or not self._rows:
            self._rewrite([*self.columns, *new], row)
        else:
            with system_errors(self.path, "written"), self.path.open("a", newline="") as file:
                file.write(_line(row.get(name) for name in self.columns))
        self._rows += 1

    def finish(self, summary: Mapping[str, float]) -> None:
        text = "name,value\n" + "".join(_line(row) for row in summary.items())
        write_atomically(self.run.directory.path / "summary.csv", lambda path: _write(path, text))

    def _read(self) -> None:
        """Go on with the file, if there is one; a last row that a kill has cut off is removed."""
        if not self.path.exists():
            return
        whole, _, cut = read_text(self.path, MOST).rpartition("\n")
        header, *rows = list(csv.reader(io.StringIO(whole))) or [[]]
        if header[:1] != ["t"] or any(row[:1] != [str(t)] for t, row in enumerate(rows)):
            raise InputError(f"{self.path} is not what fedflat wrote; move it away")
        self.columns, self._rows = header, len(rows)
        if cut:
            write_atomically(self.path, lambda path: _write(path, f"{whole}\n"))

    def _rewrite(self, columns: list[str], row: Mapping[str, float]) -> None:
        """Write the whole file with more columns, and `row` behind the others."""
        old = read_text(self.path, MOST).splitlines()[1:] if self._rows else []
        more = [""] * (len(columns) - len(self.columns))
        rows = [[*cells, *more] for cells in csv.reader(old)]
        table: list[Iterable[object]] = [columns, *rows, [row.get(name) for name in columns]]
        text = "".join(map(_line, table))
        write_atomically(self.path, lambda path: _write(path, text))
        self.columns = columns


def _line(cells: Iterable[object]) -> str:
    """A row of a CSV file; None is an empty cell, and a number has all its digits."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(["" if cell is None else cell for cell in cells])
    return buffer.getvalue()


def _write(path: Path, text: str) -> None:
    path.write_text(text, newline="")
