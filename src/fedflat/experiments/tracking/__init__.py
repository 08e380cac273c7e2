"""Writes the metrics of rounds to tracking tools: CSV files, TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...core.errors import ChangedWarning, InputError, printable
from ...engine.simulation import Round
from ..run_directory import RunDirectory, StoredRun
from ..runner import RunObserver
from ..spec import RunSpec
from .trackers import CsvTracker, MlflowTracker, TensorBoardTracker, TrackedRun, Tracker, WandbTracker

TRACKERS: dict[str, type[Tracker]] = {
    "csv": CsvTracker, "tensorboard": TensorBoardTracker, "wandb": WandbTracker, "mlflow": MlflowTracker,
}  # fmt: skip


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` without repetitions. Raises InputError for an unknown tool, or if its package is missing."""
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"--track {name}: known are {', '.join(TRACKERS)}")
        if TRACKERS[name].package and find_spec(TRACKERS[name].package) is None:
            extra = TRACKERS[name].extra
            raise InputError(f"--track {name} needs the package {name}: pip install 'fedflat[{extra}]'")
    return tuple(dict.fromkeys(names))


class TrackingObserver(RunObserver, AbstractContextManager["TrackingObserver"]):
    """Writes every round of every run to tracking tools.

    When a run is resumed, earlier rounds that a tool lacks are written from the run's folder, and no round is written
    twice. A tool that cannot begin raises InputError. A tool that fails later is dropped with a warning, and the run
    continues.
    """

    def __init__(self, names: Sequence[str], root: Path, directory_of: Callable[[RunSpec], RunDirectory]) -> None:
        """root: the folder of the run or the study. directory_of: returns the folder of a run."""
        self._names, self._root, self._directory_of = check_trackers(names), root, directory_of
        self._open: dict[Path, dict[str, Tracker]] = {}

    def __exit__(self, *_: object) -> None:
        for path in list(self._open):
            self._close(path)

    def run_started(self, spec: RunSpec, done: int) -> None:
        directory = self._directory_of(spec)
        run = TrackedRun(spec, directory, self._root)
        self._open[directory.path] = {name: _begun(name, run) for name in self._names}
        for row in directory.rows()[:done] if self._names else ():
            self._write(directory.path, int(row["t"]), row)

    def round_ended(self, spec: RunSpec, result: Round) -> None:
        self._write(self._directory_of(spec).path, result.t, result.metrics)

    def run_ended(self, spec: RunSpec, run: StoredRun) -> None:
        path = self._directory_of(spec).path
        summary = run.summary | {name: found.value for name, found in run.flatness.items()}
        self._call(path, lambda tracker: tracker.finish(summary))
        self._close(path)

    def run_failed(self, spec: RunSpec, error: Exception) -> None:
        self._close(self._directory_of(spec).path)

    def _write(self, path: Path, step: int, metrics: Mapping[str, Any]) -> None:
        known = {name: value for name, value in metrics.items() if value is not None and name != "t"}
        self._call(path, lambda tracker: tracker.write(step, known) if step >= tracker.next_step else None)

    def _call(self, path: Path, what: Callable[[Tracker], None]) -> None:
        """Call `what` with every tracker of a run, and drop those that fail."""
        trackers = self._open.get(path, {})
        for name, tracker in list(trackers.items()):
            try:
                what(tracker)
            except Exception as error:
                del trackers[name]
                with suppress(Exception):
                    tracker.close()
                reason = _in_one_line(error)
                warnings.warn(f"--track {name} is dropped for {path}: {reason}", ChangedWarning, stacklevel=2)

    def _close(self, path: Path) -> None:
        self._call(path, lambda tracker: tracker.close())
        self._open.pop(path, None)


def _begun(name: str, run: TrackedRun) -> Tracker:
    try:
        return TRACKERS[name](run)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"--track {name} cannot begin: {_in_one_line(error)}") from error


def _in_one_line(error: Exception) -> str:
    return printable(" ".join((str(error) or type(error).__name__).split())[:300])
