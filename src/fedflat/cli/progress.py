"""Progress of runs: on a terminal a bar with the time left, in files and pipes plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING

from rich.progress import Progress

from ..core.errors import is_out_of_memory
from ..experiments.runner import RunObserver
from .console import Console, counting_columns

if TYPE_CHECKING:
    from ..engine.simulation import Round
    from ..experiments.run_directory import StoredRun
    from ..experiments.spec import RunSpec
    from ..metrics.protocols import Protocol

PATIENCE = 20  # seconds between lines about a measure; a measure that takes less time has no line
# Metrics of a round that all methods share.
SHARED = {
    "test_accuracy",
    "validation_accuracy",
    "personal_accuracy",
    "test_accuracy_iterate",
    "test_loss",
    "test_loss_iterate",
    "train_loss",
    "lr",
    "clients",
    "drift",
    "gradients",
    "bytes_down",
    "bytes_up",
    "seconds",
}

COUNTS = ("attackers", "clipped", "refused")  # numbers of clients


def watcher(
    console: Console, runs: Sequence[RunSpec], protocol: Protocol = "last"
) -> AbstractContextManager[RunObserver]:
    """Return an observer of `runs`: a bar on a terminal, else printed lines; `protocol` selects the shown accuracy."""
    return Bar(console, runs, protocol) if console.is_terminal else nullcontext(Lines(console, runs, protocol))


class Results(RunObserver):
    """Prints a line for every run that has finished or diverged."""

    def __init__(self, console: Console, runs: Sequence[RunSpec] = (), protocol: Protocol = "last") -> None:
        self._console, self._protocol = console, protocol
        self._width = max([18, *(len(run.title) for run in runs)])

    def run_ended(self, spec: RunSpec, run: StoredRun) -> None:
        from ..metrics.protocols import SCORES, score_name  # here, because it needs torch
        from ..reports.comparison_data import accuracy, accuracy_in_words

        result = f"train loss {run.summary['train_loss']:.4f}"
        if "validation_accuracy_mean" in run.summary:
            result = f"validation accuracy {100 * run.summary['validation_accuracy_mean']:.2f} % (final model)"
        if score := score_name(run.summary):
            how = accuracy_in_words(self._protocol, int(run.summary[f"{score}_evaluations"]))
            result = f"{SCORES[score].title} {SCORES[score].text(accuracy(run, self._protocol))} ({how})"
        if "personal_accuracy_mean" in run.summary:
            result += f", personal accuracy {100 * run.summary['personal_accuracy_mean']:.2f} % (own models at the end)"
        self._console.say(f"{spec.title:<{self._width}} {result}  in {run.summary['seconds']:.1f} s")

    def run_failed(self, spec: RunSpec, error: Exception) -> None:
        reason = "too little memory" if is_out_of_memory(error) else error
        self._console.say(f"{spec.title:<{self._width}} left out: {reason}")

    def run_placed(self, spec: RunSpec, place: str) -> None:
        self._console.say(f"{spec.title:<{self._width}} on {place}")


class StartsAndResults(Results):
    """Prints a line for every run that begins, resumes or ends: for a process that carries out some runs of many."""

    def run_started(self, spec: RunSpec, done: int) -> None:
        self._console.say(f"{spec.title:<{self._width}} begins with round {done + 1} of {spec.rounds}")


class Bar(Results, AbstractContextManager[RunObserver]):
    """One bar over all rounds of all runs."""

    def __init__(self, console: Console, runs: Sequence[RunSpec], protocol: Protocol = "last") -> None:
        super().__init__(console, runs, protocol)
        columns, rounds = counting_columns("rounds"), sum(run.rounds for run in runs)
        self._progress = Progress(*columns, console=console, transient=True, speed_estimate_period=60)
        self._task = self._progress.add_task("", total=rounds)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._progress.stop()

    def run_started(self, spec: RunSpec, done: int) -> None:
        self._progress.update(self._task, advance=done, description=spec.title)

    def round_ended(self, spec: RunSpec, result: Round) -> None:
        self._progress.update(self._task, advance=1, description=f"{spec.title}  {state(result)}")

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=f"{spec.title}  measuring {name}, {done} of about {total}")


class Lines(Results):
    """Prints a line after each quarter of a run, at its end, and while a measure takes long."""

    def __init__(self, console: Console, runs: Sequence[RunSpec], protocol: Protocol = "last") -> None:
        super().__init__(console, runs, protocol)
        self._rounds, self._done, self._skipped, self._began = sum(run.rounds for run in runs), 0, 0, monotonic()
        self._measured: tuple[RunSpec, str] | None = None
        self._silent_until = 0.0

    def run_started(self, spec: RunSpec, done: int) -> None:
        self._done += done
        self._skipped += done

    def round_ended(self, spec: RunSpec, result: Round) -> None:
        self._done += 1
        quarter = max(1, spec.rounds // 4)
        if (result.t + 1) % quarter == 0 and result.t + 1 < spec.rounds:
            place = f"round {result.t + 1} of {spec.rounds}"
            each = (monotonic() - self._began) / (self._done - self._skipped)
            left = each * (self._rounds - self._done)
            more = ", not counting measures of flatness" if spec.flatness else ""
            self._console.say(f"{spec.title}  {place}  {state(result)}  about {left:.0f} s left{more}")

    def measuring(self, spec: RunSpec, name: str, done: int, total: int) -> None:
        if (spec, name) != self._measured:
            self._measured, self._silent_until = (spec, name), monotonic() + PATIENCE
        elif monotonic() > self._silent_until:
            self._silent_until = monotonic() + PATIENCE
            self._console.say(f"{spec.title}  measuring {name}, {done} of about {total}")


def state(result: Round) -> str:
    """Format the score after a round, its training loss, and the metrics of the method, such as FedGF's c."""
    from ..metrics.protocols import SCORES, score_name  # here, because it needs torch

    score = score_name(result.metrics)
    accuracies = {kind: result.metrics.get(f"{kind}_accuracy") for kind in ("test", "validation", "personal")}
    parts = [f"{kind} accuracy {100 * value:.1f} %" for kind, value in accuracies.items() if value is not None]
    if score is not None and score != "test_accuracy":
        parts.insert(0, f"{SCORES[score].title} {SCORES[score].text(result.metrics[score])}")
    if "test_accuracy_iterate" in result.metrics:
        parts.append(f"of the iterate {100 * result.metrics['test_accuracy_iterate']:.1f} %")
    if "train_loss" in result.metrics:
        parts.append(f"train loss {result.metrics['train_loss']:.4g}")
    # Names of a probe's values for single layers have a slash; these are not shown.
    own = {name: value for name, value in result.metrics.items() if name not in {*SHARED, score} and "/" not in name}
    texts = {name: f"{value:.0f}" if name in COUNTS else _short(value) for name, value in own.items()}
    return "  ".join(parts + [f"{name} {text}" for name, text in texts.items()])


def _short(value: float) -> str:
    """Format `value` with two decimal places, or with one significant digit if the decimal places would be zeros."""
    return f"{value:.1g}" if 0 < abs(value) < 0.005 else f"{value:.2f}"
