"""Progress of runs: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING

from rich.progress import Progress

from ..core.errors import NonFiniteError
from ..experiments.runner import RunObserver
from .console import Console, counting_columns

if TYPE_CHECKING:
    from ..engine.simulation import Round
    from ..experiments.run_directory import StoredRun
    from ..experiments.spec import RunSpec

PATIENCE = 20  # seconds between lines on a measure; one that takes less has no line
# Numbers of a round that are not the method's own.
SHARED = {"test_accuracy", "test_loss", "train_loss", "lr", "clients", "drift", "gradients", "bytes_down", "bytes_up",
          "seconds"}  # fmt: skip


def watcher(console: Console, rounds: int) -> AbstractContextManager[RunObserver]:
    """Shows the progress of `rounds` rounds: a bar if `console` is a terminal, else lines."""
    return Bar(console, rounds) if console.is_terminal else nullcontext(Lines(console, rounds))


class Results(RunObserver):
    """Prints a line for every run that has finished or diverged."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def run_finished(self, spec: RunSpec, run: StoredRun) -> None:
        accuracy, seconds = run.summary.get("test_accuracy"), run.summary["seconds"]
        loss = f"train loss {run.summary['train_loss']:.4f}"
        result = loss if accuracy is None else f"test accuracy {100 * accuracy:.2f} %"
        self._console.say(f"{spec.label:<18} {result}  in {seconds:.1f} s")

    def run_failed(self, spec: RunSpec, error: NonFiniteError) -> None:
        self._console.say(f"{spec.label:<18} left out: {error}")


class Bar(Results, AbstractContextManager[RunObserver]):
    """One bar over all rounds of all runs."""

    def __init__(self, console: Console, rounds: int) -> None:
        super().__init__(console)
        columns = counting_columns("rounds")
        self._progress = Progress(*columns, console=console, transient=True, speed_estimate_period=60)
        self._task = self._progress.add_task("", total=rounds)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._progress.stop()

    def run_started(self, spec: RunSpec, done: int) -> None:
        self._progress.update(self._task, advance=done, description=spec.label)

    def round_done(self, spec: RunSpec, result: Round) -> None:
        self._progress.update(self._task, advance=1, description=f"{spec.label}  {state(result)}")

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=f"{spec.label}  measuring {name}, {done} of about {total}")


class Lines(Results):
    """A line for every start, quarter and end of a run."""

    def __init__(self, console: Console, rounds: int) -> None:
        super().__init__(console)
        self._rounds, self._done, self._skipped, self._began = rounds, 0, 0, monotonic()
        self._measured: tuple[RunSpec, str] | None = None
        self._silent_until = 0.0

    def run_started(self, spec: RunSpec, done: int) -> None:
        self._done += done
        self._skipped += done

    def round_done(self, spec: RunSpec, result: Round) -> None:
        self._done += 1
        quarter = max(1, spec.rounds // 4)
        if (result.t + 1) % quarter == 0 and result.t + 1 < spec.rounds:
            place = f"round {result.t + 1} of {spec.rounds}"
            each = (monotonic() - self._began) / (self._done - self._skipped)
            left = each * (self._rounds - self._done)
            self._console.say(f"{spec.label}  {place}  {state(result)}  about {left:.0f} s left")

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        if (spec, name) != self._measured:
            self._measured, self._silent_until = (spec, name), monotonic() + PATIENCE
        elif monotonic() > self._silent_until:
            self._silent_until = monotonic() + PATIENCE
            self._console.say(f"{spec.label}  measuring {name}, {done} of about {total}")


def state(result: Round) -> str:
    """The accuracy after a round, and the method's own numbers, such as FedGF's c."""
    accuracy = result.metrics.get("test_accuracy")
    parts = [] if accuracy is None else [f"test accuracy {100 * accuracy:.1f} %"]
    return "  ".join(parts + [f"{name} {value:.2f}" for name, value in result.metrics.items() if name not in SHARED])
