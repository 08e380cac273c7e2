"""The interface of tools for following runs, and the one that needs no package: CSV files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...core.errors import InputError
from ...files import read_text, system_errors, write_atomically
from ...rounds.checksums import digest_of, read_checked, write_checked
from ..csv_text import csv_line
from ..run_directory import RunDirectory
from ..spec import RunSpec

STATE = "tracking.json"
TOOL, METRICS, SUMMARY = "csv", "metrics.csv", "summary.csv"
MOST = 2**28  # bytes of a file that is read
AGAIN = "going on with --track csv writes it again"


@dataclass(frozen=True)
class TrackedRun:
    """A run that is written to a tool."""

    spec: RunSpec
    directory: RunDirectory
    root: Path  # the folder of the run, or of the study that it belongs to

    def kept_name(self, tool: str) -> str:
        """Return a name that no other run of the study has; it is kept, and stays when the run gets more rounds."""
        kept = self.state(tool).get("digest")
        digest = kept if isinstance(kept, str) and kept.isalnum() else self.spec.digest()
        self.keep(tool, {"digest": digest})
        return f"{self.spec.label}-{digest}"

    def settings(self) -> dict[str, Any]:
        """Return the configuration with dotted keys, such as `client.lr`."""
        return dict(_dotted(self.spec.table()))

    def state(self, tool: str) -> dict[str, Any]:
        """Return what a tracker has kept in the run's folder. Raises InputError for a file of another kind."""
        return dict(kept_states(self.directory.path).get(tool) or {})

    def keep(self, tool: str, state: Mapping[str, Any]) -> None:
        """Keep what a tracker must know when the run is resumed."""
        write_checked(self.directory.path / STATE, kept_states(self.directory.path) | {tool: dict(state)})


def kept_states(folder: Path) -> dict[str, Any]:
    """Read what the trackers of a run have kept in its folder, by tool. Raises InputError if the file is damaged."""
    path = folder / STATE
    try:
        content = read_checked(path) if path.exists() else {}
        if isinstance(content, dict) and all(isinstance(one, dict) for one in content.values()):
            return content
        raise InputError(f"{path} is not what fedflat wrote")
    except InputError as error:
        raise InputError(f"{error}; remove it, and the run is tracked from its beginning") from error


def _dotted(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        pairs += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return pairs


class Tracker(ABC):
    """One run in one tool. A step is the number of a round, from 0; steps are written in rising order and once."""

    package: ClassVar[str] = ""  # what it imports
    extra: ClassVar[str] = ""  # of fedflat, that installs it

    def __init__(self, run: TrackedRun) -> None:
        """Begin, or go on with, the run."""
        self.run = run

    @property
    @abstractmethod
    def next_step(self) -> int:
        """The first step that is not there yet; those before are not written again."""

    @abstractmethod
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a round."""

    @abstractmethod
    def finish(self, summary: Mapping[str, float]) -> None:
        """Write the summary of the finished run."""

    def close(self) -> None:  # noqa: B027 (not every tool has something to close)
        """Write what is still in memory; the run may be resumed later."""


class CsvTracker(Tracker):
    """Files metrics.csv and summary.csv in the run's folder.

    The first has a row for each round and a column for each metric; cells of rounds without the metric are empty.

    It is written anew whenever the run goes on, from the metrics in its checkpoint: no damage stays in it.
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
    """Check the files of a CSV tracker in a run's folder; return what is wrong with each, "" if nothing is.

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
