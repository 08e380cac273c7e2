"""`--track csv`: metrics.csv and summary.csv in the folder of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...core.errors import InputError
from ...files import read_text, system_errors, write_atomically
from ...rounds.checksums import digest_of
from ..csv_text import csv_line
from .tracker import STATE, TrackedRun, Tracker, kept_states

TOOL, METRICS, SUMMARY = "csv", "metrics.csv", "summary.csv"
MOST = 2**28  # bytes of a file that is read
AGAIN = "going on with --track csv writes it again"


class CsvTracker(Tracker):
    """A row for each round, and a column for each metric; cells of rounds without it are empty.

    The file is written anew whenever the run goes on, from the metrics in its checkpoint: no damage stays in it.
    """

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self.path = run.directory.path / METRICS
        self.columns, self._rows = ["t"], 0
        if self.path.exists() and not read_text(self.path, MOST).startswith(("t,", "t\n")):
            raise InputError(f"{self.path} is not what fedflat wrote; move it away")
        run.keep(TOOL, {})  # the digests of files that are about to change

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
                file.write(csv_line(row.get(name) for name in self.columns))
        self._rows += 1

    def finish(self, summary: Mapping[str, float]) -> None:
        folder, text = self.run.directory.path, "name,value\n" + "".join(map(csv_line, summary.items()))
        write_atomically(folder / SUMMARY, lambda path: _write(path, text))
        self.run.keep(TOOL, {name: digest_of(folder / name) for name in (METRICS, SUMMARY)})

    def _rewrite(self, columns: list[str], row: Mapping[str, float]) -> None:
        """Write the whole file with more columns, and `row` behind the others."""
        old = read_text(self.path, MOST).splitlines()[1:] if self._rows else []
        more = "," * (len(columns) - len(self.columns))
        table = [csv_line(columns), *(f"{line}{more}\n" for line in old), csv_line(row.get(name) for name in columns)]
        write_atomically(self.path, lambda path: _write(path, "".join(table)))
        self.columns = columns


def check_csv(folder: Path) -> dict[str, str]:
    """The files of a CSV tracker in a run's folder, each with what is wrong with it, or "" if nothing is.

    Only those of a run that was tracked to its end are checked; the others are written anew when it goes on. Raises
    InputError if the file with the digests is damaged.
    """
    digests = kept_states(folder).get(TOOL)
    if digests:
        return {name: _problem(folder / name, str(digests.get(name))) for name in (METRICS, SUMMARY)}
    is_ours = (folder / METRICS).exists() and read_text(folder / METRICS, MOST).startswith("t,")
    return {STATE: "it is missing"} if is_ours and not (folder / STATE).exists() else {}


def _problem(path: Path, digest: str) -> str:
    if not path.is_file():
        return "it is missing"
    return "" if digest_of(path) == digest else "its SHA-256 is another one"


def _write(path: Path, text: str) -> None:
    path.write_text(text, newline="")
